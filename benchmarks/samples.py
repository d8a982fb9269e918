"""Sample (one setting's run of one unit) and what many of them say together."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.answers import Group, Speculated
from benchmarks.interleave import Unit


@dataclass(frozen=True, slots=True)
class Sample:
    """ratio: speed over the baseline's on the same unit, None for the baseline and where either had a single token.
    strict_ratio: the same over `strict`, of a loose verifier. rate: tokens per second of the whole unit while all its
    clients were being answered (Group.busy_rate). whole_rate: from request to last token. token_seconds: mean over its
    answers. cold_seconds: to the first token, of `off` on a unit of which no prompt had been asked before; every other
    first token comes behind a prompt in the prefix cache. differing: answers that are not the baseline's, token for
    token. set_index, repeat: which set of prompts the unit is a part of, in which pass."""

    category: str
    prompts: tuple[str, ...]
    concurrency: int
    setting: str
    turn: int
    tokens: int
    rate: float | None
    whole_rate: float
    token_seconds: float | None
    first_token_seconds: float
    cold_seconds: float | None
    ratio: float | None
    differing: int
    speculated: Speculated
    strict_ratio: float | None = None
    set_index: int | None = None
    repeat: int = 0

    @classmethod
    def of(
        cls,
        unit: Unit,
        setting: str,
        turn: int,
        group: Group,
        baseline: Group,
        *,
        strict: Group | None = None,
        cold: Group | None = None,
        repeat: int = 0,
    ) -> "Sample":
        each = [answer.token_seconds for answer in group.answers if answer.token_seconds is not None]
        return cls(
            category=unit.category,
            prompts=tuple(prompt.name for prompt in unit.prompts),
            concurrency=unit.concurrency,
            setting=setting,
            turn=turn,
            tokens=group.tokens,
            rate=group.busy_rate,
            whole_rate=group.whole_rate,
            token_seconds=statistics.fmean(each) if each else None,
            first_token_seconds=_first_token_seconds(group),
            cold_seconds=None if cold is None else _first_token_seconds(cold),
            ratio=None if group is baseline else _over(group, baseline),
            differing=sum(mine != its for mine, its in zip(group.contents, baseline.contents, strict=True)),
            speculated=group.speculated,
            strict_ratio=None if strict is None else _over(group, strict),
            set_index=unit.set_index,
            repeat=repeat,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"tau": self.speculated.tau}


def _over(group: Group, other: Group) -> float | None:
    mine, its = group.busy_rate, other.busy_rate
    return mine / its if mine and its else None


def _first_token_seconds(group: Group) -> float:
    return statistics.fmean(answer.first_token_seconds for answer in group.answers)


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    mean: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """None of no values."""
        if not values:
            return None
        return cls(statistics.median(values), statistics.fmean(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a setting's samples of one group of categories at one concurrency. category_mean: the mean
    of its categories' median ratios, where there are several."""

    group: str
    concurrency: int
    setting: str
    samples: int
    answers: int
    tokens: int
    ratio: Spread | None
    category_mean: float | None
    strict_ratio: Spread | None
    rate: Spread | None
    whole_rate: Spread | None
    token_seconds: Spread | None
    first_token_seconds: Spread | None
    cold_seconds: Spread | None
    tau: float | None
    acceptance: float | None
    loosened: dict[str, int]
    differing: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(samples: Sequence[Sample]) -> list[Row]:
    """A row for each category, for each data set with several of them, and for everything, by concurrency and setting,
    in the order of their first appearance."""
    rows = []
    for concurrency in sorted({sample.concurrency for sample in samples}):
        alike = [sample for sample in samples if sample.concurrency == concurrency]
        for group, members in _groups(alike).items():
            for setting in dict.fromkeys(sample.setting for sample in members):
                rows.append(_row(group, concurrency, setting, [one for one in members if one.setting == setting]))
    return rows


def _groups(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """By category, data set and altogether; groups that would say the same as a smaller one are left out."""
    found: dict[str, list[Sample]] = {}
    for category in sorted({sample.category for sample in samples}):
        found[category] = [sample for sample in samples if sample.category == category]
    datasets = [category.split("/")[0] for category in found if "/" in category]
    for dataset in [name for name in dict.fromkeys(datasets) if datasets.count(name) > 1]:
        found[dataset] = [sample for sample in samples if sample.category.split("/")[0] == dataset]
    if len({category.split("/")[0] for category in found}) > 1:
        found["all"] = list(samples)
    return found


def _row(group: str, concurrency: int, setting: str, samples: Sequence[Sample]) -> Row:
    speculated = Speculated.total([sample.speculated for sample in samples])
    return Row(
        group=group,
        concurrency=concurrency,
        setting=setting,
        samples=len(samples),
        answers=sum(len(sample.prompts) for sample in samples),
        tokens=sum(sample.tokens for sample in samples),
        ratio=Spread.of(_known(sample.ratio for sample in samples)),
        category_mean=_category_mean(samples),
        strict_ratio=Spread.of(_known(sample.strict_ratio for sample in samples)),
        rate=Spread.of(_known(sample.rate for sample in samples)),
        whole_rate=Spread.of([sample.whole_rate for sample in samples]),
        token_seconds=Spread.of(_known(sample.token_seconds for sample in samples)),
        first_token_seconds=Spread.of([sample.first_token_seconds for sample in samples]),
        cold_seconds=Spread.of(_known(sample.cold_seconds for sample in samples)),
        tau=speculated.tau,
        acceptance=speculated.acceptance,
        loosened={rule: tokens for rule, tokens in speculated.loosened.items() if tokens},
        differing=sum(sample.differing for sample in samples),
    )


def _category_mean(samples: Sequence[Sample]) -> float | None:
    ratios: dict[str, list[float]] = {}
    for sample in samples:
        if sample.ratio is not None:
            ratios.setdefault(sample.category, []).append(sample.ratio)
    return statistics.fmean(map(statistics.median, ratios.values())) if len(ratios) > 1 else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
