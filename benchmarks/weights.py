"""What each kind of weights costs a CPU target: quality against exact weights, and time, side by side in one run.

    python -m benchmarks.weights --config configs/demo.yaml

Quality: over the last rows of real texts (chat prompts of public data sets) the mean Kullback-Leibler divergence from
the reference's distribution, in nats, and how often both like the same token best. Time: one forward of so many rows
of those texts (some cost int8_mixed more than others) behind a short context, the kinds in turns, and a plain step as
a multiple of the time that reading its packed weights once takes at the memory bandwidth right before and after it, the
better of both: on a machine that is shared, bandwidth halves and doubles within minutes. Then the configuration itself
is loaded, and its engine's `off` steps are held against the same limit. Times of different runs mean nothing beside
each other.

Holds all kinds at once: for the demo's target 16 GB with the float32 reference, 10 GB with --reference fp16.
"""

import argparse
import asyncio
import gc
import statistics
import time
from dataclasses import dataclass
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from benchmarks.bandwidth import Bandwidth
from benchmarks.datasets import load_what_is_there
from benchmarks.matrix import GREEDY, OFF
from benchmarks.progress import Report, progress
from benchmarks.results_file import Results, Table
from benchmarks.stack import open_stack
from core.layout import RaggedLayout, Segment
from core.models.loader import LoadedModel, load_model
from core.models.packed_linear import PACKED, Fp16Linear, PackedLinear, WeightKind
from core.models.runner import ModelRunner
from server.cpu_quota import compute_threads
from server.model_folders import fetch
from server.settings_loading import load_settings

_BLOCK = 16
_CONTEXT = 64  # positions before the rows that are timed
_ENGINE_TOKENS = 48  # of each answer that the engine's steps are timed on
_ENGINE_ANSWERS = 4


@dataclass(frozen=True, slots=True)
class Quality:
    kl: float
    worst_kl: float
    top1: float
    rows: int


Milliseconds = dict[int, list[float]]  # of each turn, by number of rows


@dataclass(frozen=True, slots=True)
class Timed:
    """What a kind's turns took. bandwidths: bytes a second around each of them."""

    milliseconds: Milliseconds
    bandwidths: list[float]


def chat_tokens(folder: Path, specs: list[str]) -> tuple[list[list[int]], list[str]]:
    """Token ids of the prompts in the model's own chat template, and what data sets could not be had."""
    prompts, missing = load_what_is_there(specs)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": p.text}], tokenize=False, add_generation_prompt=True)
        for p in prompts
    ]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts], missing


def runner_of(folder: Path, weights: WeightKind, positions: int) -> ModelRunner:
    return ModelRunner(load_model(folder, weights), -(-positions // _BLOCK), _BLOCK)


def layout(tokens: list[int], context: int, logits: int) -> RaggedLayout:
    blocks = tuple(range(-(-(context + len(tokens)) // _BLOCK)))
    return RaggedLayout.build([Segment(tuple(tokens), context, blocks, logits)], _BLOCK)


def last_rows(runner: ModelRunner, text: list[int], rows: int) -> Tensor:
    """Log-probabilities of a text's last rows, float32 [rows, vocab]."""
    return runner.forward(layout(text, 0, min(rows, len(text)))).log_softmax(-1)


def compare(reference: list[Tensor], runner: ModelRunner, texts: list[list[int]], rows: int) -> Quality:
    divergences, same = [], []
    for expected, text in zip(reference, texts, strict=True):
        got = last_rows(runner, text, rows)
        divergences.append((expected.exp() * (expected - got)).sum(-1))
        same.append(expected.argmax(-1) == got.argmax(-1))
    kl = torch.cat(divergences)
    return Quality(kl.mean().item(), kl.max().item(), torch.cat(same).float().mean().item(), len(kl))


def step_bytes(loaded: LoadedModel) -> int:
    """What a forward of one row reads of the weights at least: all but the embedding's other rows."""
    total = 0
    for module in loaded.model.modules():
        if isinstance(module, PackedLinear):
            total += module.in_features * module.out_features * (2 if isinstance(module, Fp16Linear) else 1)
        elif not isinstance(module, nn.Embedding):
            total += sum(p.numel() * p.itemsize for p in module.parameters(recurse=False))
    return total


def forward_seconds(runner: ModelRunner, text: list[int], rows: int, repeats: int) -> float:
    wanted = layout(text[_CONTEXT : _CONTEXT + rows], _CONTEXT, rows)
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        runner.forward(wanted)
        best = min(best, time.perf_counter() - began)
    return best


def time_in_turns(
    runners: dict[WeightKind, ModelRunner],
    text: list[int],
    rows: list[int],
    turns: int,
    repeats: int,
    bandwidth: Bandwidth,
    report: Report,
) -> dict[WeightKind, Timed]:
    """The bandwidth is measured around every kind's single rows. text: of at least the context and the most rows."""
    timed = {kind: Timed({count: [] for count in rows}, []) for kind in runners}
    for runner in runners.values():
        runner.forward(layout(text[:_CONTEXT], 0, 0))
    for _ in range(turns):
        for kind, runner in runners.items():
            for count in rows:
                before = bandwidth.measure() if count == 1 else 0.0
                timed[kind].milliseconds[count].append(1e3 * forward_seconds(runner, text, count, repeats))
                if count == 1:
                    timed[kind].bandwidths.append(max(before, bandwidth.measure()))
        report()
    return timed


async def engine_steps(config: Path, texts: list[list[int]], bandwidth: Bandwidth) -> dict[str, Any]:
    """Milliseconds a token of `off` answers from the whole engine, one stream, against reading the packed weights."""
    async with open_stack(config) as stack:
        fields = {**GREEDY, **OFF.fields, "ignore_eos": True}
        chosen = texts[:_ENGINE_ANSWERS]
        await stack.answer(chosen[0], fields, _ENGINE_TOKENS)
        milliseconds, bandwidths = [], []
        for text in chosen:
            before = bandwidth.measure()
            answer = await stack.answer(text, fields, _ENGINE_TOKENS)
            milliseconds.append(1e3 * (answer.token_seconds or 0.0))
            bandwidths.append(max(before, bandwidth.measure()))
        size = step_bytes(stack.runtime.target.loaded)
        return {
            "milliseconds": spread(milliseconds),
            "step_over_reading": over_reading(milliseconds, size, bandwidths),
            "gigabytes_per_second": spread([1e-9 * one for one in bandwidths]),
        }


def over_reading(milliseconds: list[float], size: int, bandwidths: list[float]) -> dict[str, float]:
    """Steps as multiples of the time that reading so many bytes takes at the bandwidth around each."""
    return spread([one / 1e3 * speed / size for one, speed in zip(milliseconds, bandwidths, strict=True)])


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main() -> None:
    options = _options()
    settings = load_settings(options.config)
    torch.set_num_threads(compute_threads(settings.threads, torch.get_num_threads()))
    folder = fetch(settings).target
    texts, missing = chat_tokens(folder, options.prompts)
    timed_text = list(islice(cycle(chain.from_iterable(texts)), _CONTEXT + max(options.rows)))
    positions = max(map(len, [timed_text, *texts]))
    with progress("weights", 1 + len(options.kinds) + options.turns) as report:
        runner = runner_of(folder, options.reference, positions)
        reference = [last_rows(runner, text, options.text_rows) for text in texts]
        del runner
        gc.collect()
        report()
        runners: dict[WeightKind, ModelRunner] = {}
        quality: dict[WeightKind, Quality] = {}
        for kind in options.kinds:
            runners[kind] = runner_of(folder, kind, positions)
            quality[kind] = compare(reference, runners[kind], texts, options.text_rows)
            report(f"{kind}: KL {quality[kind].kl:.5f}, same best token {quality[kind].top1:.1%}")
        bandwidth = Bandwidth()
        timed = time_in_turns(runners, timed_text, options.rows, options.turns, options.repeats, bandwidth, report)
    sizes = {kind: step_bytes(runner.loaded) for kind, runner in runners.items()}
    runners.clear()
    gc.collect()
    engine = None if options.no_engine else asyncio.run(engine_steps(options.config, texts, bandwidth))
    kinds = {kind: _figures(sizes[kind], quality[kind], timed[kind]) for kind in options.kinds}
    content: dict[str, Any] = {
        "config": options.config.name,
        "reference": options.reference,
        "prompts": options.prompts,
        "prompts_missing": missing,
        "gigabytes_per_second": {name: 1e-9 * best for name, best in bandwidth.best.items()},
        "kinds": kinds,
        "engine_off": engine,
    }
    head = ["weights", "KL, nats", "same best token", "GB read", "step over reading"]
    head += [f"{count} row{'s' * (count > 1)}, ms" for count in options.rows]
    table = [_cells(kind, figures) for kind, figures in kinds.items()]
    Results(options.out, f"weights-{options.config.stem}").write(
        "weights", "Kinds of weights", content, [Table(head, table)]
    )
    if engine is not None:
        print(f"off through the engine, over reading: {_shown(engine['step_over_reading'])}")


def _figures(size: int, quality: Quality, timed: Timed) -> dict[str, Any]:
    return {
        "kl": quality.kl,
        "worst_kl": quality.worst_kl,
        "top1_agreement": quality.top1,
        "rows_compared": quality.rows,
        "step_bytes": size,
        "milliseconds": {str(count): spread(values) for count, values in timed.milliseconds.items()},
        "step_over_reading": over_reading(timed.milliseconds[1], size, timed.bandwidths) if timed.bandwidths else None,
        "gigabytes_per_second": spread([1e-9 * one for one in timed.bandwidths]) if timed.bandwidths else None,
    }


def _cells(kind: str, figures: dict[str, Any]) -> list[str]:
    over = figures["step_over_reading"]
    return [
        kind,
        f"{figures['kl']:.5f}",
        f"{figures['top1_agreement']:.1%}",
        f"{figures['step_bytes'] / 1e9:.2f}",
        _shown(over) if over else "",
        *(f"{values['median']:.1f}" for values in figures["milliseconds"].values()),
    ]


def _shown(values: dict[str, float]) -> str:
    return f"{values['median']:.2f} ({values['min']:.2f} to {values['max']:.2f})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weights", description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--kinds", nargs="+", choices=list(PACKED), default=list(PACKED))
    parser.add_argument("--reference", choices=["float32", "fp16"], default="float32")
    parser.add_argument("--prompts", nargs="+", default=["humaneval:6", "gsm8k:6"])
    parser.add_argument("--text-rows", type=int, default=64, help="of each text, its last")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 9, 16])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="forwards in a turn, of which the best counts")
    parser.add_argument("--no-engine", action="store_true", help="leave out the engine's own steps")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
