"""Asking: all items under all settings, group by group, several at a time, each answer kept as it comes.

A group is some items of every task. All settings answer it one after the other, in an order that is balanced over the
groups, so that what has been done when a run ends early has been done under every setting, and times compare.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.answers import Answer, Group
from benchmarks.evaluation.items import Item
from benchmarks.evaluation.journal import Journal
from benchmarks.evaluation.reply import Asker, Question, TooLongError, fingerprint
from benchmarks.interleave import balanced
from benchmarks.matrix import Setting
from benchmarks.progress import Report

_WAVES = 4  # answers of each client in a group: the last ones, when clients fall idle one by one, are a small part


@dataclass(frozen=True, slots=True)
class Plan:
    """settings: the baseline first. clients: how many ask at a time. minutes: after which nothing more is begun; None
    for no such end."""

    items: Sequence[Item]
    settings: Sequence[Setting]
    clients: int = 8
    max_tokens: int = 512
    temperature: float = 0.0
    seeds: Sequence[int] = (0,)
    minutes: float | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    @property
    def common(self) -> dict[str, Any]:
        """What all of its requests share."""
        return {"max_tokens": self.max_tokens, **self.sampling}

    @property
    def groups(self) -> list[list[Item]]:
        """Items in an order in which all tasks are spread evenly, cut into pieces."""
        mixed, size = list(spread(self.items)), self.clients * _WAVES
        return [mixed[start : start + size] for start in range(0, len(mixed), size)]

    @property
    def turns(self) -> list[tuple[Setting, int]]:
        return list(itertools.product(self.settings, self.seeds))

    @property
    def questions(self) -> int:
        return len(self.items) * len(self.turns)


def spread(items: Sequence[Item]) -> Iterator[Item]:
    """The k-th of a task's n items stands at (k + 1/2) / n of the way."""
    tasks: dict[str, list[Item]] = {}
    for item in items:
        tasks.setdefault(item.task, []).append(item)
    placed = [((k + 0.5) / len(task), item) for task in tasks.values() for k, item in enumerate(task)]
    yield from (item for _, item in sorted(placed, key=lambda pair: pair[0]))


@dataclass
class Outcome:
    """too_long: items whose prompt leaves no room for an answer. out_of_time: whether some were not asked."""

    too_long: set[Item] = field(default_factory=set)
    out_of_time: bool = False


@dataclass
class Run:
    """told: called after each group, whose answers are all in the journal then."""

    asker: Asker
    plan: Plan
    journal: Journal
    report: Report
    told: Callable[[], None] = lambda: None
    outcome: Outcome = field(default_factory=Outcome)

    async def ask_everything(self) -> Outcome:
        """What the journal does not have. ApiError or RefusedError if somebody who answers says no."""
        for setting in self.plan.settings:
            await self.asker.check(setting, self.plan.sampling)
        ends = None if self.plan.minutes is None else time.monotonic() + 60 * self.plan.minutes
        for number, group in enumerate(self.plan.groups):
            turns = balanced(self.plan.turns, number)
            left = {turn: self._left(group, turn) for turn in turns}
            self._time_again(group, left)
            if any(len(questions) == len(group) for questions in left.values()):
                await self.asker.prime([item.prompt for item in group])
            for turn in turns:
                if ends is not None and time.monotonic() >= ends and left[turn]:
                    self.outcome.out_of_time = True
                    return self.outcome
                self.report(steps=len(group) - len(left[turn]))
                await self._turn(group, left[turn])
            if any(left.values()):
                self.told()
        return self.outcome

    def _time_again(self, group: Sequence[Item], left: dict[tuple[Setting, int], list[Question]]) -> None:
        """The baseline's answers to a group may be known from an earlier run, whose times do not compare with those of
        settings that are new: then it answers once more."""
        baseline = self.plan.settings[0]
        for seed in self.plan.seeds:
            others = [questions for (one, its), questions in left.items() if its == seed and one is not baseline]
            if self.asker.measures_time and any(len(questions) == len(group) for questions in others):
                left[baseline, seed] = [Question(item, baseline, seed) for item in group]

    def _left(self, group: Sequence[Item], turn: tuple[Setting, int]) -> list[Question]:
        asked = [Question(item, *turn) for item in group]
        return [question for question in asked if self.journal.reply(question) is None]

    async def _turn(self, group: Sequence[Item], questions: Sequence[Question]) -> None:
        """Ask the questions; times count if they are those of the whole group, as answers begin beside others then."""
        if not questions:
            return
        answers = await self._answers(questions)
        known = [answer for answer in answers if answer is not None]
        whole = sum(item not in self.outcome.too_long for item in group)
        if self.asker.measures_time and known and len(known) == whole:
            rate = Group(tuple(known), min(self.plan.clients, len(known))).busy_rate
            if rate is not None:
                first = questions[0]
                self.journal.add_rate(group_name(group, self.plan), first.setting, first.seed, rate)

    async def _answers(self, questions: Sequence[Question]) -> list[Answer | None]:
        """In the order in which they were asked; all clients busy until there is nothing left to ask. Whoever fails
        ends the others, and is raised."""
        waiting = iter(enumerate(questions))
        found: list[Answer | None] = [None] * len(questions)

        async def client() -> None:
            for number, question in waiting:
                found[number] = await self._one(question)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(self.plan.clients, len(questions))):
                    tasks.create_task(client())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return found

    async def _one(self, question: Question) -> Answer | None:
        answer: Answer | None = None
        if question.item not in self.outcome.too_long:
            fields: Mapping[str, Any] = {
                **self.plan.sampling, "seed": question.seed, **question.setting.fields
            }  # fmt: skip
            try:
                reply, answer = await self.asker.ask(question.item.prompt, fields, self.plan.max_tokens)
                self.journal.add(question, reply)
            except TooLongError:
                self.outcome.too_long.add(question.item)
        self.report()
        return answer


def group_name(group: Sequence[Item], plan: Plan) -> str:
    """The same for the same items asked by as many clients."""
    return fingerprint([[item.task, item.name, item.prompt] for item in group], plan.clients)
