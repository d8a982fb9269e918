"""Runs in turns, so that a machine that grows slower or faster meanwhile does so for all of them.

A unit is one prompt, or a group of prompts asked at once. For every unit the baseline and each setting run one after
the other, in an order that rotates from unit to unit:

    unit 0    off     strict  fly
    unit 1    strict  fly     off
    unit 2    fly     off     strict

and each setting's speed is divided by that of the same unit's baseline.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.datasets import Prompt

T = TypeVar("T")
MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Unit:
    """Prompts to be asked at once. category: theirs, or "mixed"."""

    category: str
    prompts: tuple[Prompt, ...]

    @property
    def concurrency(self) -> int:
        return len(self.prompts)


def rotated(items: Sequence[T], turn: int) -> list[T]:
    at = turn % len(items)
    return [*items[at:], *items[:at]]


def units(prompts: Sequence[Prompt], concurrency: Sequence[int], groups: int) -> list[Unit]:
    """Every prompt by itself where concurrency has 1, and for each larger number at most `groups` groups of it, mixed
    from all categories. Sizes take turns too. ValueError if there are fewer prompts than a group needs."""
    lists = [_units_of(prompts, size, groups) for size in concurrency]
    longest = max(map(len, lists))
    # Spread evenly: the k-th of n units stands at (k + 1/2) / n of the way.
    placed = [((k + 0.5) / len(one), unit) for one in lists for k, unit in enumerate(one)]
    return [unit for _, unit in sorted(placed, key=lambda pair: pair[0])] if longest else []


def _units_of(prompts: Sequence[Prompt], size: int, groups: int) -> list[Unit]:
    if size == 1:
        return [Unit(prompt.category, (prompt,)) for prompt in _mixed(prompts)]
    if len(prompts) < size:
        raise ValueError(f"{size} clients at once need {size} different prompts, there are {len(prompts)}")
    mixed = list(_mixed(prompts))
    chunks = [mixed[i : i + size] for i in range(0, len(mixed) - size + 1, size)][:groups]
    return [Unit(MIXED, tuple(chunk)) for chunk in chunks]


def _mixed(prompts: Sequence[Prompt]) -> Iterator[Prompt]:
    """One of each category in turn, until all are out."""
    queues: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        queues.setdefault(prompt.category, []).append(prompt)
    for turn in range(max(map(len, queues.values()), default=0)):
        yield from (queue[turn] for queue in queues.values() if turn < len(queue))
