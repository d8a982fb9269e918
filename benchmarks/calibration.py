"""Fill CSD's correction memory for a benchmark: what greedy strict speculation gets wrong on other prompts.

A round of strict speculation follows the target's own text up to the first draft that differs from it, so the pairs
of its first mismatches are the draft's choices behind the target's text wherever they are not the target's. One draft
forward over a finished answer therefore finds them all:

    target's text     p0 p1 | t0 t1 t2 t3          p: prompt, t: answer
    draft's choice       d0   d1 d2 d3             d0 after p1, d1 after t0, ...
    recorded          (d2, t2) if d2 is the only one that differs

(Rounds draft neither the first token nor the one behind a fully accepted block, so they record slightly fewer pairs.)
"""

import asyncio
from collections.abc import Sequence

from benchmarks.errors import BenchError
from benchmarks.matrix import GREEDY
from benchmarks.stack import Stack
from core.correction_memory import CorrectionMemory
from core.layout import RaggedLayout, Segment
from core.models.runner import ModelRunner

_STRICT = GREEDY | {"verifier": "strict"}


async def calibrate(stack: Stack, messages: Sequence[str], max_tokens: int) -> dict[str, int]:
    """Record the draft model's mismatches on the target's answers; returns how much lies behind the memory now.

    BenchError without a draft model. Nothing else may run meanwhile: rounds read the memory.
    """
    runtime = stack.runtime
    if runtime.draft is None:
        raise BenchError("calibration needs a draft model")
    prompts = [stack.encode_chat(message) for message in messages]
    answers = [(await stack.answer(prompt, _STRICT, max_tokens)).ids for prompt in prompts]
    size = runtime.pool.block_size
    longest = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    # The same weights over a KV cache of its own: the server's holds prefixes that must stay as they are.
    draft = ModelRunner(runtime.draft.loaded, -(-longest // size), size)
    for prompt, answer in zip(prompts, answers, strict=True):
        await asyncio.to_thread(record_mismatches, runtime.memory, draft, prompt, answer)
    runtime.memory.merge_round()
    table = runtime.memory.snapshot("model")
    return {"prompts": len(prompts), "tokens": sum(map(len, answers)), "pairs": table.num_pairs}


def record_mismatches(memory: CorrectionMemory, draft: ModelRunner, prompt: list[int], answer: Sequence[int]) -> None:
    """Buffer the pairs of one answer of the target."""
    fed = (*prompt, *answer)[:-1]
    blocks = tuple(range(-(-len(fed) // draft.block_size)))
    layout = RaggedLayout.build([Segment(fed, 0, blocks, len(answer))], draft.block_size)
    choices = draft.forward(layout).argmax(-1).tolist()
    for guess, token in zip(choices, answer, strict=True):
        if guess != token:
            memory.record("model", guess, token)
    memory.observe("model", samples=1, tokens=len(answer))
