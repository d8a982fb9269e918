"""What all answers say together: a row for each task and setting."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.answers import Speculated
from benchmarks.evaluation.bootstrap import Pairs, interval, recovery
from benchmarks.evaluation.items import Item
from benchmarks.evaluation.reply import Reply
from benchmarks.evaluation.sandbox import Verdict
from benchmarks.matrix import OFF


@dataclass(frozen=True, slots=True)
class Judged:
    """One answer. baseline: the answer of the first setting to the same item under the same seed; itself for that."""

    item: Item
    setting: str
    seed: int
    reply: Reply
    verdict: Verdict | None
    baseline: Reply


@dataclass(frozen=True, slots=True)
class Row:
    """score: share of right answers, None for tasks without one. recovery: it over the baseline's. interval: recovery's
    at 95 %. estimated_speedup: from the answers' rounds; every token counts alike. measured_speedup: the median over
    groups of the times of the whole group; None where there are none. length: tokens over those of the baseline's
    answers. equal: share of answers that are the baseline's, to the letter. agreement: mean share of the baseline's
    answer up to the first letter that differs. cut: share that ended for their length."""

    group: str
    setting: str
    items: int
    answers: int
    score: float | None
    recovery: float | None
    interval: tuple[float, float] | None
    estimated_speedup: float | None
    measured_speedup: float | None
    tau: float | None
    acceptance: float | None
    loosened: dict[str, int]
    tokens: int
    length: float | None
    equal: float | None
    agreement: float | None
    cut: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(answers: Sequence[Judged], rates: dict[str, list[float]]) -> list[Row]:
    """Rows for each task, for each kind of task with several categories, and for all together, by setting. rates: a
    setting's measured speeds over the baseline's, of whole groups, which mix all tasks: they stand with the widest."""
    rows = []
    groups = _groups(answers)
    for group, members in groups.items():
        baseline = members[0].setting
        for setting in dict.fromkeys(answer.setting for answer in members):
            mine = [answer for answer in members if answer.setting == setting]
            measured = rates.get(setting, []) if len(members) == len(answers) else []
            rows.append(_row(group, setting, mine, members, setting == baseline, measured))
    return rows


def _groups(answers: Sequence[Judged]) -> dict[str, list[Judged]]:
    found: dict[str, list[Judged]] = {}
    for task in sorted({answer.item.task for answer in answers}):
        found[task] = [answer for answer in answers if answer.item.task == task]
    kinds = [task.split("/")[0] for task in found if "/" in task]
    for kind in [kind for kind in dict.fromkeys(kinds) if kinds.count(kind) > 1]:
        found[kind] = [answer for answer in answers if answer.item.task.split("/")[0] == kind]
    if len({task.split("/")[0] for task in found}) > 1:
        found["all"] = list(answers)
    return found


def _row(
    group: str, setting: str, mine: Sequence[Judged], members: Sequence[Judged], first: bool, measured: Sequence[float]
) -> Row:
    speculated = Speculated.total([answer.reply.speculated for answer in mine])
    scored = [answer.verdict.passed for answer in mine if answer.verdict is not None]
    tasks = [] if first else _pairs(mine, [one for one in members if one.setting == members[0].setting])
    tokens, others = sum(one.reply.tokens for one in mine), sum(one.baseline.tokens for one in mine)
    return Row(
        group=group,
        setting=setting,
        items=len({answer.item for answer in mine}),
        answers=len(mine),
        score=statistics.fmean(scored) if scored else None,
        recovery=recovery(tasks) if tasks else None,
        interval=interval(tasks) if tasks else None,
        estimated_speedup=_estimated([answer.reply for answer in mine]),
        measured_speedup=statistics.median(measured) if measured else None,
        tau=None if setting == OFF.name else speculated.tau,
        acceptance=speculated.acceptance,
        loosened={rule: number for rule, number in speculated.loosened.items() if number},
        tokens=tokens,
        length=None if first or not others else tokens / others,
        equal=None if first else statistics.fmean(one.reply.text == one.baseline.text for one in mine),
        agreement=None if first else statistics.fmean(agreement(one.reply.text, one.baseline.text) for one in mine),
        cut=statistics.fmean(answer.reply.cut for answer in mine),
    )


def _pairs(mine: Sequence[Judged], its: Sequence[Judged]) -> list[Pairs]:
    """By task: the items' scores under this setting and the baseline; without the tasks that have none."""
    scores: dict[str, dict[Item, tuple[list[bool], list[bool]]]] = {}
    for side, answers in enumerate((mine, its)):
        for answer in answers:
            if answer.verdict is not None:
                both = scores.setdefault(answer.item.task, {}).setdefault(answer.item, ([], []))
                both[side].append(answer.verdict.passed)
    return [
        np.array([[statistics.fmean(side) for side in both] for both in items.values()]) for items in scores.values()
    ]


def _estimated(replies: Sequence[Reply]) -> float | None:
    """What `off` would have taken over what the rounds took, tokens weighing alike."""
    known = [(reply.speculated.round_tokens, reply.speedup) for reply in replies if reply.speedup]
    took = sum(tokens / speedup for tokens, speedup in known)
    return sum(tokens for tokens, _ in known) / took if took > 0 else None


def agreement(text: str, other: str) -> float:
    """The share of the other text up to the first letter that differs; 1 for equal ones, 0 where one goes on."""
    if text == other:
        return 1.0
    same = next((at for at, (mine, its) in enumerate(zip(text, other, strict=False)) if mine != its), None)
    if same is None:
        same = min(len(text), len(other))
    return same / max(len(text), len(other))
