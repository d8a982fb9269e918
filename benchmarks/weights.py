"""What each kind of weights costs a CPU target: quality against exact weights, and time, side by side in one run.

    python -m benchmarks.weights --config configs/demo.yaml

Quality: over the last rows of real texts (chat prompts of public data sets) the mean Kullback-Leibler divergence from
the reference's distribution, in nats, and how often both like the same token best. Time: one forward of so many rows
behind a short context, the kinds in turns, and a plain step as a multiple of the time that reading its packed weights
once takes at the memory bandwidth measured in the same turn. Times of different runs mean nothing beside each other.

Holds all kinds at once: for the demo's target 14 GB with the float32 reference, 8 GB with --reference fp16.
"""

import argparse
import gc
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from benchmarks.datasets import load_what_is_there
from benchmarks.progress import Report, progress
from benchmarks.results_file import Results
from core.layout import RaggedLayout, Segment
from core.models.loader import LoadedModel, load_model
from core.models.packed_linear import PACKED, Fp16Linear, PackedLinear, WeightKind
from core.models.runner import ModelRunner
from server.model_folders import fetch
from server.settings_loading import load_settings

_BLOCK = 16
_CONTEXT = 64  # positions before the rows that are timed
_PROBE_BYTES = 1 << 29  # far more than any cache holds


@dataclass(frozen=True, slots=True)
class Quality:
    kl: float
    worst_kl: float
    top1: float
    rows: int


@dataclass(slots=True)
class Timed:
    """Milliseconds of each turn by number of rows; of a plain step also the multiple of its reading time."""

    by_rows: dict[int, list[float]]
    over_reading: list[float]


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


def reading_seconds(probe: Tensor) -> float:
    """Seconds per byte of the memory, all threads reading: the best of three."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        probe.sum()
        best = min(best, time.perf_counter() - began)
    return best / (probe.numel() * probe.itemsize)


def forward_seconds(runner: ModelRunner, rows: int, repeats: int) -> float:
    wanted = layout([1] * rows, _CONTEXT, rows)
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        runner.forward(wanted)
        best = min(best, time.perf_counter() - began)
    return best


def time_in_turns(
    runners: dict[WeightKind, ModelRunner], rows: list[int], turns: int, repeats: int, report: Report
) -> tuple[dict[WeightKind, Timed], list[float]]:
    """Per kind its times; and the gigabytes per second of each turn."""
    probe = torch.ones(_PROBE_BYTES // 4)
    timed = {kind: Timed({count: [] for count in rows}, []) for kind in runners}
    speeds = []
    for runner in runners.values():
        runner.forward(layout([1] * _CONTEXT, 0, 0))
    for _ in range(turns):
        for kind, runner in runners.items():
            for count in rows:
                before = reading_seconds(probe)
                seconds = forward_seconds(runner, count, repeats)
                per_byte = min(before, reading_seconds(probe))
                timed[kind].by_rows[count].append(seconds * 1e3)
                speeds.append(1e-9 / per_byte)
                if count == 1:
                    timed[kind].over_reading.append(seconds / (per_byte * step_bytes(runner.loaded)))
        report()
    return timed, speeds


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main() -> None:
    options = _options()
    settings = load_settings(options.config)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    folder = fetch(settings).target
    texts, missing = chat_tokens(folder, options.prompts)
    positions = max(_CONTEXT + max(options.rows), *map(len, texts))
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
        timed, speeds = time_in_turns(runners, options.rows, options.turns, options.repeats, report)
    kinds = {kind: _figures(runners[kind], quality[kind], timed[kind]) for kind in options.kinds}
    content: dict[str, Any] = {
        "config": options.config.name,
        "reference": options.reference,
        "prompts": options.prompts,
        "prompts_missing": missing,
        "gigabytes_per_second": spread(speeds),
        "kinds": kinds,
    }
    head = ["weights", "KL, nats", "same best token", "GB read", "step over reading"]
    head += [f"{count} row{'s' * (count > 1)}, ms" for count in options.rows]
    table = [_cells(kind, figures) for kind, figures in kinds.items()]
    Results(options.out, f"weights-{options.config.stem}").write("weights", "Kinds of weights", content, head, table)


def _figures(runner: ModelRunner, quality: Quality, timed: Timed) -> dict[str, Any]:
    return {
        "kl": quality.kl,
        "worst_kl": quality.worst_kl,
        "top1_agreement": quality.top1,
        "rows_compared": quality.rows,
        "step_bytes": step_bytes(runner.loaded),
        "milliseconds": {str(count): spread(values) for count, values in timed.by_rows.items()},
        "step_over_reading": spread(timed.over_reading) if timed.over_reading else None,
    }


def _cells(kind: str, figures: dict[str, Any]) -> list[str]:
    over = figures["step_over_reading"]
    return [
        kind,
        f"{figures['kl']:.5f}",
        f"{figures['top1_agreement']:.1%}",
        f"{figures['step_bytes'] / 1e9:.2f}",
        f"{over['median']:.2f} ({over['min']:.2f} to {over['max']:.2f})" if over else "",
        *(f"{values['median']:.1f}" for values in figures["milliseconds"].values()),
    ]


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
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
