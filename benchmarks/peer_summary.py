"""What runs of several engines on the same prompts say: ours over theirs, prompt by prompt."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.answers import Group
from benchmarks.interleave import Unit
from benchmarks.samples import Spread
from benchmarks.tables import Cells, extent, ratio

BASELINE = "ours:off"  # whose answers the others are compared with
_MANY_MODES = "llama.cpp"  # the engine whose best mode is a line of its own


@dataclass(frozen=True, slots=True)
class PeerRun:
    """One engine's answers to one unit. rate: tokens per second behind the first arrivals. texts: the answers."""

    category: str
    prompts: tuple[str, ...]
    concurrency: int
    runner: str
    ours: bool
    turn: int
    tokens: int
    rate: float | None
    first_token_seconds: float
    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, unit: Unit, runner: str, ours: bool, turn: int, group: Group) -> "PeerRun":
        names = tuple(prompt.name for prompt in unit.prompts)
        first = min(answer.first_token_seconds for answer in group.answers)
        texts = tuple(map(str, group.contents))
        return cls(unit.category, names, unit.concurrency, runner, ours, turn, group.tokens, group.rate, first, texts)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One engine at one number of clients on one group of prompts. samples: units measured. equal: answers that are our
    `off` ones, character for character, of `compared`. ratios: by each of ours, its speed over this engine's on the
    same prompts. best: the mode that a line "ENGINE:best" stands for."""

    group: str
    concurrency: int
    runner: str
    samples: int
    tokens: int
    equal: int
    compared: int
    rate: Spread | None
    ratios: dict[str, Spread]
    best: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


PEER_HEAD = (
    "prompts", "clients", "engine", "n", "tokens", "as our off", "tokens/s", "min..max",
    "ours over it (median, min..max)",
)  # fmt: skip


def peer_cells(row: PeerRow) -> Cells:
    ours = "; ".join(f"{name} {ratio(spread)} ({extent(spread)})" for name, spread in row.ratios.items())
    rate = "" if row.rate is None else f"{row.rate.median:.1f}"
    spread = "" if row.rate is None else f"{row.rate.min:.1f}..{row.rate.max:.1f}"
    name = row.runner if row.best is None else f"{row.runner} ({row.best})"
    alike = f"{row.equal} of {row.compared}" if row.compared else ""
    return (row.group, str(row.concurrency), name, str(row.samples), str(row.tokens), alike, rate, spread, ours)


def compare(runs: Sequence[PeerRun]) -> list[PeerRow]:
    """By number of clients, data set ("all" if there are several) and engine, the best mode behind them."""
    rows = []
    for concurrency in sorted({run.concurrency for run in runs}):
        alike = [run for run in runs if run.concurrency == concurrency]
        groups = list(dict.fromkeys(run.category.split("/")[0] for run in alike))
        for group in [*groups, *(["all"] if len(groups) > 1 else [])]:
            mine = [run for run in alike if group in ("all", run.category.split("/")[0])]
            found = [_row(group, concurrency, name, mine) for name in dict.fromkeys(run.runner for run in mine)]
            rows += [*found, *_best(found)]
    return rows


def _row(group: str, concurrency: int, runner: str, runs: Sequence[PeerRun]) -> PeerRow:
    its = {run.turn: run for run in runs if run.runner == runner}
    ratios: dict[str, list[float]] = {}
    for run in runs:
        theirs = its.get(run.turn)
        if run.ours and run.runner != runner and run.rate and theirs is not None and theirs.rate:
            ratios.setdefault(run.runner.removeprefix("ours:"), []).append(run.rate / theirs.rate)
    spreads = {name: spread for name, values in ratios.items() if (spread := Spread.of(values)) is not None}
    off = {run.turn: run.texts for run in runs if run.runner == BASELINE and runner != BASELINE}
    pairs = [pair for turn, run in its.items() if turn in off for pair in zip(run.texts, off[turn], strict=True)]
    return PeerRow(
        group=group,
        concurrency=concurrency,
        runner=runner,
        samples=len(its),
        tokens=sum(run.tokens for run in its.values()),
        equal=sum(text == other for text, other in pairs),
        compared=len(pairs),
        rate=Spread.of([run.rate for run in its.values() if run.rate]),
        ratios=spreads,
    )


def _best(rows: Sequence[PeerRow]) -> list[PeerRow]:
    """The mode that our fastest setting is least ahead of: what the engine can do, chosen after the fact."""
    modes = [row for row in rows if row.runner.startswith(f"{_MANY_MODES}:") and row.ratios]
    if len(modes) < 2:
        return []
    best = min(modes, key=lambda row: max(spread.median for spread in row.ratios.values()))
    return [replace(best, runner=f"{_MANY_MODES}:best", best=best.runner.removeprefix(f"{_MANY_MODES}:"))]
