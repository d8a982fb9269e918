"""Throughput by number of clients, on the same prompts: sets of them that each number splits in its own way."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.samples import Sample, Spread
from benchmarks.tables import Cells, extent, ratio

SCALING_HEAD = (
    "clients", "setting", "sets", "tokens/s", "min..max", "against fewest clients", "against the next fewer",
    "against off", "rises",
)  # fmt: skip
_Rates = Mapping[tuple[int, int], float]  # by set and pass


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """One setting at one number of clients. rate: tokens per second while all clients are being answered, a whole set
    at a time. gain, step: over the same set at the fewest clients and at the next fewer. over_off: over the same set
    under `off` at as many. rises: whether more clients gave more in the median, up to here."""

    concurrency: int
    setting: str
    sets: int
    rate: Spread
    gain: Spread | None
    step: Spread | None
    over_off: Spread | None
    rises: bool | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def scaling(samples: Sequence[Sample], baseline: str) -> list[ScalingRow]:
    """By number of clients and setting; nothing where there is one number only."""
    rates = _rates(samples)
    sizes = sorted({size for size, _ in rates})
    rows: list[ScalingRow] = []
    rising: dict[str, bool] = {}
    for before, size in zip([None, *sizes], sizes, strict=False):
        for setting in [name for one, name in rates if one == size]:
            mine = rates[size, setting]
            step = None if before is None else _over(mine, rates.get((before, setting), {}))
            if step is not None:
                rising[setting] = rising.get(setting, True) and step.median > 1
            rate = Spread.of(list(mine.values()))
            assert rate is not None  # no setting without a sample
            rows.append(
                ScalingRow(
                    concurrency=size,
                    setting=setting,
                    sets=len(mine),
                    rate=rate,
                    gain=None if before is None else _over(mine, rates.get((sizes[0], setting), {})),
                    step=step,
                    over_off=None if setting == baseline else _over(mine, rates.get((size, baseline), {})),
                    rises=rising.get(setting),
                )
            )
    return rows if len(sizes) > 1 else []


def scaling_cells(row: ScalingRow) -> Cells:
    return (
        str(row.concurrency),
        row.setting,
        str(row.sets),
        f"{row.rate.median:.1f}",
        f"{row.rate.min:.1f}..{row.rate.max:.1f}",
        *("" if one is None else f"{ratio(one)} ({extent(one)})" for one in (row.gain, row.step, row.over_off)),
        "" if row.rises is None else "yes" if row.rises else "no",
    )


def _rates(samples: Sequence[Sample]) -> dict[tuple[int, str], dict[tuple[int, int], float]]:
    """By number of clients and setting: tokens of a whole set over the seconds that its units take for them at their
    rates."""
    totals: dict[tuple[int, str], dict[tuple[int, int], tuple[int, float]]] = {}
    for sample in samples:
        if sample.set_index is not None and sample.rate:
            kind = totals.setdefault((sample.concurrency, sample.setting), {})
            tokens, seconds = kind.get((sample.set_index, sample.repeat), (0, 0.0))
            total = (tokens + sample.tokens, seconds + sample.tokens / sample.rate)
            kind[sample.set_index, sample.repeat] = total
    return {kind: {key: tokens / seconds for key, (tokens, seconds) in sets.items()} for kind, sets in totals.items()}


def _over(mine: _Rates, its: _Rates) -> Spread | None:
    return Spread.of([rate / its[key] for key, rate in mine.items() if key in its])
