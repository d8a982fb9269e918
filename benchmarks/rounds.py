"""What a round costs beside its forward: the evidence pass, masks and commit."""

import asyncio
import statistics
from typing import Any

from benchmarks.datasets import Prompt
from benchmarks.errors import BenchError
from benchmarks.matrix import GREEDY
from benchmarks.stack import Stack
from core.round import RoundResult

K = 15
BATCH = 8
_SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "temperature 1, unfiltered": {"temperature": 1, "seed": 1},
    "temperature 1, top_p 0.95": {"temperature": 1, "top_p": 0.95, "seed": 1},
}
_BLOCKS = {"num_draft_tokens": K, "draft_length": "fixed"}


async def evidence_shares(stack: Stack, prompts: list[Prompt], max_tokens: int) -> dict[str, Any]:
    """Seconds of the evidence pass over those of the target's forward, rounds of one stream with 15 drafts."""
    shares: dict[str, list[float]] = {name: [] for name in _SAMPLINGS}
    for prompt in prompts:
        for name, sampling in _SAMPLINGS.items():
            first = len(stack.log.rounds)
            await stack.ask([prompt.text], {"verifier": "fly", **_BLOCKS, **sampling}, max_tokens)
            full = [one for one in stack.log.rounds[first:] if _drafted(one) == K]
            shares[name] += [one.evidence_seconds / one.forward_seconds for one in full]
    return {
        name: {"median_share": statistics.median(found), "rounds": len(found)}
        for name, found in shares.items()
        if found
    }


async def commit_milliseconds(stack: Stack, prompts: list[Prompt], max_tokens: int) -> dict[str, Any]:
    """Masks and commit of rounds with 8 sequences and 15 drafts each; stop strings, penalties and logprobs on.
    BenchError if there are fewer than 8 prompts."""
    if len(prompts) < BATCH:
        raise BenchError(f"masks and commit are measured with {BATCH} prompts at once, there are {len(prompts)}")
    fields = {
        **GREEDY, **_BLOCKS, "verifier": "fly", "presence_penalty": 0.1, "frequency_penalty": 0.1, "logprobs": 5,
        "stop": ["this never comes", "\n\n\n\n\n"], "ignore_eos": True,
    }  # fmt: skip
    first = len(stack.log.rounds)
    encoded = [stack.encode_chat(prompt.text) for prompt in prompts[:BATCH]]
    await asyncio.gather(*(stack.answer(prompt, fields, max_tokens) for prompt in encoded))
    full = [one for one in stack.log.rounds[first:] if one.decoding == BATCH and _drafted(one) == BATCH * K]
    if not full:
        return {"rounds": 0}
    milliseconds = sorted(1e3 * one.commit_seconds for one in full)
    return {
        "rounds": len(full),
        "median_ms": statistics.median(milliseconds),
        "worst_ms": milliseconds[-1],
        "mean_tokens": statistics.fmean(sum(len(item.tokens) for item in one.items) for one in full),
    }


def _drafted(result: RoundResult) -> int:
    return sum(item.drafted for item in result.items)
