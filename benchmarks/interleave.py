"""Runs in turns, so that a machine that grows slower or faster meanwhile does so for all of them.

A unit is one prompt, or a group of prompts asked by several clients. For every unit the baseline and each setting run
one after the other, and each setting's speed is divided by that of the same unit's baseline. Orders are balanced: over
any two units of a kind every setting is before every other once, over 2n units of a kind with n settings it has had
every place, and every other right before it, twice:

    unit 0    off     strict  fly         unit 2    strict  fly     off
    unit 1    fly     strict  off         unit 3    off     fly     strict    ...
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.datasets import Prompt
from benchmarks.errors import BenchError

T = TypeVar("T")
MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Unit:
    """Prompts to be asked by `concurrency` clients, each going on with the next as soon as it has its answer.
    category: theirs, or "mixed". set_index: of the set of prompts that every number of clients splits in its own way;
    None for a prompt in no set."""

    category: str
    prompts: tuple[Prompt, ...]
    set_index: int | None = None
    concurrency: int = 1


def rotated(items: Sequence[T], turn: int) -> list[T]:
    at = turn % len(items)
    return [*items[at:], *items[:at]]


def balanced(items: Sequence[T], turn: int) -> list[T]:
    """The turn-th order: a Williams design's rows, each followed by its reverse.

    Its first row zigzags, 0 1 n-1 2 n-2 ..., so that neighbours differ by every distance once, and the others add k.
    """
    n = len(items)
    zigzag = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(n)]
    row = [items[(place + turn // 2) % n] for place in zigzag]
    return row[::-1] if turn % 2 else row


class BalancedOrders:
    """Counts turns by kind of unit (category and number of clients), each kind from another start: kinds that take
    turns would otherwise see the same few orders again and again."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, int], int] = {}

    def order(self, unit: Unit, items: Sequence[T]) -> list[T]:
        kind = (unit.category, unit.concurrency)
        turn = self._turns.get(kind, len(self._turns))
        self._turns[kind] = turn + 1
        return balanced(items, turn)


def units(prompts: Sequence[Prompt], concurrency: Sequence[int], groups: int, waves: int = 1) -> list[Unit]:
    """What is asked together.

    Numbers of clients are compared on the same prompts: `groups` sets (fewer if there are not enough prompts), mixed
    from all categories and of `waves` prompts for each of the most clients, are asked by 1, 2, 4 clients and so on,
    each number splitting them into units of `waves` prompts a client. Within a set the numbers take turns. Where
    concurrency has 1, the prompts outside of all sets follow one by one. BenchError if there are fewer prompts than a
    set needs, or a number does not divide the largest.
    """
    sizes, mixed = sorted(set(concurrency)), list(_mixed(prompts))
    widest = sizes[-1]
    whole = widest * (waves if widest > 1 else 1)
    if len(mixed) < whole:
        raise BenchError(f"{widest} clients at once need {whole} different prompts, there are {len(mixed)}")
    if odd := [size for size in sizes if widest % size]:
        raise BenchError(f"numbers of clients share sets of prompts, so {odd[0]} should divide the largest, {widest}")
    number = min(groups, len(mixed) // whole) if widest > 1 else 0
    sets = [mixed[i * whole : (i + 1) * whole] for i in range(number)]
    found = [unit for index, one in enumerate(sets) for unit in _split(one, index, sizes, waves)]
    rest = mixed[number * whole :] if sizes[0] == 1 else []
    return found + [Unit(prompt.category, (prompt,)) for prompt in rest]


def _split(prompts: Sequence[Prompt], index: int, sizes: Sequence[int], waves: int) -> list[Unit]:
    """One set for every number of clients; one client has a prompt a unit. Spread evenly: the k-th of n units stands
    at (k + 1/2) / n of the way."""
    placed = []
    for size in sizes:
        width = size * waves if size > 1 else 1
        count = len(prompts) // width
        for k in range(count):
            chunk = tuple(prompts[k * width : (k + 1) * width])
            unit = Unit(chunk[0].category if size == 1 else MIXED, chunk, index, size)
            placed.append(((k + 0.5) / count, unit))
    return [unit for _, unit in sorted(placed, key=lambda pair: pair[0])]


def _mixed(prompts: Sequence[Prompt]) -> Iterator[Prompt]:
    """One of each category in turn, until all are out."""
    queues: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        queues.setdefault(prompt.category, []).append(prompt)
    for turn in range(max(map(len, queues.values()), default=0)):
        yield from (queue[turn] for queue in queues.values() if turn < len(queue))
