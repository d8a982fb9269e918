"""Speed, as ratios measured side by side in one run.

    python -m benchmarks.speed --config configs/demo.yaml            all sections
    python -m benchmarks.speed --config configs/demo.yaml strict     some of: plain strict batch loose shares commit

plain   `off`, one stream, against transformers' own float32 generate, the same prompt, turn by turn
strict  `strict` with each drafter against `off`, HumanEval prompts, turn by turn
batch   eight `off` requests together against one alone, tokens per second
loose   strict, fly, csd and hybrid at a fixed K: acceptance length and loosened tokens, by kind of prompt; the
        correction memory is calibrated first, on other prompts of the same kinds (benchmarks/calibration.py)
shares  the evidence pass as a share of the target's forward, greedy and at temperature 1
commit  masks and commit of rounds with 8 sequences and 15 drafts, in milliseconds

Times of different runs or machines mean nothing beside each other; only the ratios do. Run it on an
otherwise idle machine. Writes benchmarks/results/speed-<config>.json.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.calibration import calibrate
from benchmarks.prompts import humaneval, spec_bench
from benchmarks.stack import GREEDY, Answer, Stack, open_stack
from core.drafters.base import DRAFTERS
from core.sampling_params import SamplingParams
from core.verifiers.params import CsdParams, FlyParams, HybridParams, StrictParams, VerifierParams
from server.text.stop_strings import StopAutomaton, StopStrings
from server.text.token_bytes import TokenBytes

Report = dict[str, Any]
RESULTS = Path(__file__).parent / "results"


def say(text: str) -> None:
    print(text, flush=True)


async def plain(stack: Stack, options: argparse.Namespace) -> Report:
    """Seconds per token of transformers' generate over those of `off`, float32 weights from the same files."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(stack.folders.target, dtype=torch.float32).eval()
    ratios, agreed = [], []
    for message in humaneval(3):
        prompt = stack.encode_chat(message)
        ours = await stack.generate(prompt, max_tokens=options.plain_tokens, ignore_eos=True)
        seconds, tokens = await asyncio.to_thread(_generate_seconds, theirs, prompt, options.plain_tokens)
        ratios.append(seconds / ours.seconds_per_token)
        agreed.append(_common_prefix(tokens, list(ours.tokens)))
        say(f"  off {ours.seconds_per_token * 1e3:.0f} ms, transformers {seconds * 1e3:.0f} ms: {ratios[-1]:.2f}x")
    return {"speedup_over_transformers": _mean(ratios), "each": ratios, "equal_leading_tokens": agreed}


@torch.inference_mode()
def _generate_seconds(model: Any, prompt: list[int], count: int) -> tuple[float, list[int]]:
    """Seconds per token after the first: a long generate less one of a single token."""

    def run(tokens: int) -> tuple[float, list[int]]:
        began = time.perf_counter()
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens
        )
        return time.perf_counter() - began, out[0, len(prompt) :].tolist()

    first, _ = run(1)
    whole, tokens = run(count)
    return (whole - first) / (count - 1), tokens


def _common_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


async def strict(stack: Stack, options: argparse.Namespace) -> Report:
    """`off` seconds per token over `strict`'s, prompt by prompt, and whether the tokens are the same."""
    drafters = [d for d in options.drafters if stack.served.has_draft or d == "prompt_lookup"]
    settings = [(drafter, k) for drafter in drafters for k in options.draft_tokens]
    rows: dict[str, list[float]] = {f"{drafter} K={k}": [] for drafter, k in settings}
    different: dict[str, int] = dict.fromkeys(rows, 0)
    taus: dict[str, list[float]] = {name: [] for name in rows}
    for message in humaneval(options.prompts):
        prompt = stack.encode_chat(message)
        off = await stack.generate(prompt, max_tokens=options.tokens)
        for (drafter, k), name in zip(settings, rows, strict=True):
            answer = await stack.generate(prompt, max_tokens=options.tokens, drafter=drafter, num_draft_tokens=k)
            rows[name].append(off.seconds_per_token / answer.seconds_per_token)
            taus[name].append(answer.counters.mean_accepted_length or 0.0)
            different[name] += answer.tokens != off.tokens
        line = ", ".join(f"{name} {values[-1]:.2f}x" for name, values in rows.items())
        say(f"  off {off.seconds_per_token * 1e3:.0f} ms a token; {line}")
    return {
        name: {
            "speedup": _mean(values),
            "tau": _mean(taus[name]),
            "answers_differing": different[name],
            "each": values,
        }
        for name, values in rows.items()
    }


async def batch(stack: Stack, options: argparse.Namespace) -> Report:
    """Tokens per second of eight `off` requests together over one alone."""
    prompts = [stack.encode_chat(message) for message in humaneval(8)]

    async def rate(together: list[list[int]]) -> float:
        began = time.perf_counter()
        answers = await asyncio.gather(
            *(stack.generate(p, max_tokens=options.tokens, ignore_eos=True) for p in together)
        )
        return sum(len(a.tokens) for a in answers) / (time.perf_counter() - began)

    alone = [await rate([prompts[0]])]
    eight = await rate(prompts)
    alone.append(await rate([prompts[1]]))
    ratio = eight / _mean(alone)
    say(f"  alone {_mean(alone):.1f} tokens/s, eight together {eight:.1f} tokens/s: {ratio:.2f}x")
    return {"throughput_ratio": ratio}


async def loose(stack: Stack, options: argparse.Namespace) -> Report:
    """Acceptance length, loosened tokens and speedup over `off` at a fixed K."""
    known = {"frequency_threshold": options.loose_frequency}
    verifiers: dict[str, VerifierParams] = {
        "strict": StrictParams(),
        "fly": FlyParams.model_validate({}),
        "csd": CsdParams.model_validate(known),
        "hybrid": HybridParams.model_validate(known),
    }
    kinds = {
        "humaneval": humaneval(options.loose_prompts),
        "writing": spec_bench("writing", options.loose_prompts),
    }
    calibration = await _calibrate(stack, options, kinds)
    report: Report = {"num_draft_tokens": options.loose_k, "calibration": calibration | known}
    for kind, messages in kinds.items():
        report[kind] = {}
        prompts = [stack.encode_chat(message) for message in messages]
        off = [await stack.generate(prompt, max_tokens=options.tokens) for prompt in prompts]
        for name, verifier in verifiers.items():
            answers = [
                await stack.generate(
                    prompt,
                    max_tokens=options.tokens,
                    verifier=verifier,
                    drafter="multilevel",
                    num_draft_tokens=options.loose_k,
                )
                for prompt in prompts
            ]
            report[kind][name] = row = _loose_row(answers, off)
            say(f"  {kind:10} {name:7} tau {row['tau']:.2f}, loosened {row['loosened']}, {row['speedup']:.2f}x off")
    return report


async def _calibrate(stack: Stack, options: argparse.Namespace, measured: dict[str, list[str]]) -> Report:
    """Unless the configuration names a correction memory, fill one from prompts that are not measured."""
    if stack.settings.speculation.correction_memory is not None:
        return {"file": str(stack.settings.speculation.correction_memory)}
    count = options.calibration_prompts
    messages = humaneval(count, besides=measured["humaneval"])
    messages += spec_bench("writing", count, besides=measured["writing"])
    report = await calibrate(stack, messages, options.tokens)
    say(f"  calibrated on {report['tokens']} tokens: {report['pairs']} pairs")
    return {**report}


def _loose_row(answers: list[Answer], off: list[Answer]) -> Report:
    rounds = sum(a.counters.rounds for a in answers)
    return {
        "tau": sum(a.counters.round_tokens for a in answers) / max(1, rounds),
        "tokens": sum(len(a.tokens) for a in answers),
        "loosened": sum(sum(a.counters.loosened.values()) for a in answers),
        "speedup": _mean([o.seconds_per_token / a.seconds_per_token for o, a in zip(off, answers, strict=True)]),
        "estimated_speedup": _mean([a.counters.estimated_speedup or 0.0 for a in answers]),
    }


async def shares(stack: Stack, options: argparse.Namespace) -> Report:
    """The evidence pass of rounds with 15 drafts as a share of their target forward, one stream."""
    prompt = stack.encode_chat(humaneval(1)[0])
    report: Report = {}
    settings = {"greedy": GREEDY, "temperature 1, unfiltered": SamplingParams(temperature=1.0, seed=3)}
    for name, sampling in settings.items():
        first = len(stack.log.rounds)
        await stack.generate(prompt, max_tokens=60, drafter="multilevel", num_draft_tokens=15, sampling=sampling)
        rounds = [r for r in stack.log.rounds[first:] if r.items[0].drafted == 15]
        report[name] = statistics.median(r.evidence_seconds / r.forward_seconds for r in rounds)
        say(f"  {name}: evidence {report[name]:.1%} of the forward, {len(rounds)} rounds")
    return report


async def commit(stack: Stack, options: argparse.Namespace) -> Report:
    """Masks and commit of rounds with 8 sequences of 15 drafts; a stop string, penalties and logprobs on."""
    served = stack.served
    table = TokenBytes.from_tokenizer(served.tokenizer, served.vocab_size, served.control_token_ids)
    stops = StopAutomaton([b"this never comes", b"\n\n\n\n\n"])
    sampling = SamplingParams(temperature=0.0, presence_penalty=0.1, frequency_penalty=0.1, logprobs=5)
    first = len(stack.log.rounds)
    await asyncio.gather(
        *(
            stack.generate(
                stack.encode_chat(message),
                max_tokens=options.tokens,
                verifier=FlyParams.model_validate({}),
                drafter="multilevel",
                num_draft_tokens=15,
                sampling=sampling,
                stop=StopStrings(stops, table),
                ignore_eos=True,
            )
            for message in humaneval(8)
        )
    )
    rounds = [r for r in stack.log.rounds[first:] if r.decoding == 8 and sum(i.drafted for i in r.items) == 120]
    milliseconds = sorted(r.commit_seconds * 1e3 for r in rounds)
    tokens = statistics.fmean(sum(len(i.tokens) for i in r.items) for r in rounds)
    median, worst = statistics.median(milliseconds), milliseconds[-1]
    say(f"  {median:.2f} ms (worst {worst:.2f}), {len(rounds)} rounds of {tokens:.0f} tokens")
    return {"median_ms": median, "worst_ms": worst, "mean_tokens": tokens}


SECTIONS: dict[str, Callable[[Stack, argparse.Namespace], Awaitable[Report]]] = {
    "plain": plain,
    "strict": strict,
    "batch": batch,
    "loose": loose,
    "shares": shares,
    "commit": commit,
}


def _mean(values: list[float]) -> float:
    return statistics.fmean(values)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="section", help=f"of {', '.join(SECTIONS)}; default all")
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--prompts", type=int, default=10, help="HumanEval prompts of `strict`")
    parser.add_argument("--tokens", type=int, default=200, help="most tokens an answer may have")
    parser.add_argument("--draft-tokens", type=int, nargs="+", default=[10], help="K values of `strict`")
    parser.add_argument("--drafters", nargs="+", default=["multilevel", "prompt_lookup", "model"], choices=DRAFTERS)
    parser.add_argument("--plain-tokens", type=int, default=40)
    parser.add_argument("--loose-prompts", type=int, default=5)
    parser.add_argument("--loose-k", type=int, default=15)
    parser.add_argument("--calibration-prompts", type=int, default=10, help="of each kind, before `loose`")
    parser.add_argument("--loose-frequency", type=float, default=2, help="frequency_threshold of csd and hybrid")
    options = parser.parse_args()
    unknown = set(options.sections) - SECTIONS.keys()
    if unknown:
        parser.error(f"unknown sections {sorted(unknown)}; known are {', '.join(SECTIONS)}")
    return options


async def main() -> int:
    options = _arguments()
    file = RESULTS / f"speed-{options.config.stem}.json"
    report = json.loads(file.read_text()) if file.exists() else {}
    async with open_stack(options.config) as stack:
        await stack.warm_up(stack.encode_chat("Say hello."))
        for name in options.sections or SECTIONS:
            say(name)
            report[name] = await SECTIONS[name](stack, options)
            RESULTS.mkdir(exist_ok=True)
            file.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
