"""What runs of several engines on the same prompts say: ours over theirs, prompt by prompt."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.answers import Group
from benchmarks.interleave import Unit
from benchmarks.samples import Spread
from benchmarks.tables import Cells, extent, ratio


@dataclass(frozen=True, slots=True)
class PeerRun:
    """One engine's answers to one unit. rate: tokens per second behind the first arrivals."""

    category: str
    prompts: tuple[str, ...]
    concurrency: int
    runner: str
    ours: bool
    turn: int
    tokens: int
    rate: float | None
    first_token_seconds: float

    @classmethod
    def of(cls, unit: Unit, runner: str, ours: bool, turn: int, group: Group) -> "PeerRun":
        names = tuple(prompt.name for prompt in unit.prompts)
        first = min(answer.first_token_seconds for answer in group.answers)
        return cls(unit.category, names, unit.concurrency, runner, ours, turn, group.tokens, group.rate, first)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One engine at one number of clients on one group of prompts. ratios: by each of ours, its speed over this
    engine's on the same prompts."""

    group: str
    concurrency: int
    runner: str
    samples: int
    rate: Spread | None
    ratios: dict[str, Spread]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


PEER_HEAD = ("prompts", "clients", "engine", "tokens/s", "min..max", "ours over it (median, min..max)")


def peer_cells(row: PeerRow) -> Cells:
    ours = "; ".join(f"{name} {ratio(spread)} ({extent(spread)})" for name, spread in row.ratios.items())
    rate = "" if row.rate is None else f"{row.rate.median:.1f}"
    spread = "" if row.rate is None else f"{row.rate.min:.1f}..{row.rate.max:.1f}"
    return (row.group, str(row.concurrency), row.runner, rate, spread, ours)


def compare(runs: Sequence[PeerRun]) -> list[PeerRow]:
    """By number of clients, data set ("all" if there are several) and engine."""
    rows = []
    for concurrency in sorted({run.concurrency for run in runs}):
        alike = [run for run in runs if run.concurrency == concurrency]
        groups = list(dict.fromkeys(run.category.split("/")[0] for run in alike))
        for group in [*groups, *(["all"] if len(groups) > 1 else [])]:
            mine = [run for run in alike if group in ("all", run.category.split("/")[0])]
            rows += [_row(group, concurrency, name, mine) for name in dict.fromkeys(run.runner for run in mine)]
    return rows


def _row(group: str, concurrency: int, runner: str, runs: Sequence[PeerRun]) -> PeerRow:
    its = {run.turn: run.rate for run in runs if run.runner == runner and run.rate}
    ratios: dict[str, list[float]] = {}
    for run in runs:
        if run.ours and run.runner != runner and run.rate and run.turn in its:
            ratios.setdefault(run.runner.removeprefix("ours:"), []).append(run.rate / its[run.turn])
    spreads = {name: spread for name, values in ratios.items() if (spread := Spread.of(values)) is not None}
    return PeerRow(group, concurrency, runner, len(its), Spread.of(list(its.values())), spreads)
