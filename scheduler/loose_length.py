"""Draft lengths under loose verifiers: a pure function of the request's settings, its own history and frozen costs.

Where a block of drafts ends is part of a loose rule's meaning (ALGORITHMS 2), so neither load nor neighbours may
move it: the block is weighed as if the sequence were alone. What is right is counted as for strict ones, and
mismatches that the verifier forgives are added: behind a mismatch FLy wants `window` matches inside the block, so
only a draft with so many behind it can be forgiven.

    reach(s) = product over j = 1 .. s of  right(j) + (1 - right(j)) * loosening   if j <= k - window
                                           right(j)                                otherwise

A block no longer than the window ends early where the draft model is in doubt, like a strict one, the chance of being
forgiven counted in: what the draft model says depends on the sequence's own text alone, too. One with room behind a
mismatch is drafted to its end: where the draft model is in doubt a mismatch is near, which can be forgiven only for
what follows it. So it must be worth more than the short one as weighed here, by what that gains by knowing where to
end.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from core.forward_costs import Floats, ForwardCosts, RowCurve
from scheduler.draft_option import Choice, Option, least_reaches

ENDING_EARLY = 1.15
"""Rate of a block that ends where the draft model doubts, over what is weighed here; a guess that held on the demo
pair: at 1 fly drafted much that was lost, at 1.3 it had less room to loosen."""

Length = tuple[float, int, float, float]
"""Of one option's blocks: tokens per second, how many drafts, tokens, seconds."""

NO_ROOM: Length = (0.0, 0, 1.0, 0.0)


class Ask(NamedTuple):
    """A sequence whose block is to be chosen. positions: its context. window: that its verifier wants behind a
    mismatch; 0 if none."""

    positions: int
    options: Sequence[Option]
    window: int


class Block(NamedTuple):
    """tokens: that it is expected to deliver. seconds: of its round."""

    choice: Choice
    tokens: float
    seconds: float


def choose_block(costs: ForwardCosts, ask: Ask) -> Block:
    """The block of a sequence, weighed as if it were alone."""
    return pick(costs, ask, [_lengths(costs, ask, option) for option in ask.options])


def _lengths(costs: ForwardCosts, ask: Ask, option: Option) -> tuple[Length, Length]:
    tokens = 1 + expected_drafts(option, ask.window, option.loosening)
    seconds = _block_seconds(costs, ask.positions, option)
    rates = tokens / seconds

    def length(at: int) -> Length:
        return float(rates[at]), at, float(tokens[at]), float(seconds[at])

    if not ask.window:
        return length(int(rates.argmax())), NO_ROOM
    first = ask.window + 1
    roomy = length(first + int(rates[first:].argmax())) if option.cap >= first else NO_ROOM
    return length(int(rates[:first].argmax())), roomy


def pick(costs: ForwardCosts, ask: Ask, lengths: Sequence[tuple[Length, Length]]) -> Block:
    """The block of a sequence; lengths: of each option the best without room behind a mismatch, if there is a window,
    and the best with room, at a rate of 0 or less where all are too short for that."""
    plain = costs.verify(1, 1, ask.positions)
    best, roomy = (1 / plain, 0, 1.0, plain), (0.0, 0, 1.0, plain)
    best_by: Option | None = None
    roomy_by: Option | None = None
    for option, (one, with_room) in zip(ask.options, lengths, strict=True):
        if one[1] and one[0] > best[0]:
            best, best_by = one, option
        if with_room[0] > roomy[0]:
            roomy, roomy_by = with_room, option
    margin = ENDING_EARLY if best_by is not None and best_by.per_turn else 1.0
    taken, by = (roomy, roomy_by) if roomy[0] >= margin * best[0] else (best, best_by)
    rate, num_drafts, tokens, seconds = taken
    if by is None or not by.per_turn or costs.draft is None or 0 < ask.window < num_drafts:
        return Block(Choice(by, num_drafts), tokens, seconds)
    per_row = costs.target.at(num_drafts + 2) - costs.target.at(num_drafts + 1)
    reaches = least_reaches(rate, per_row, costs.draft.at(by.turn_rows))
    return Block(Choice(by, num_drafts, *reaches), tokens, seconds)


def expected_drafts(option: Option, window: int, loosening: float) -> Floats:
    """How many drafts of a block of 0, 1, ... cap are delivered on average; [cap + 1].

    loosening: the chance that a mismatch with its window in the block is forgiven.
    """
    right = np.full(option.cap, option.later)
    right[:1] = option.first
    inside, forgiving = _shape(option.cap, window)
    chance = right * inside + ((1 - right) * loosening) * forgiving
    return np.concatenate([[0.0], chance.cumprod(axis=1).sum(axis=1)])


@lru_cache(maxsize=256)
def _shape(cap: int, window: int) -> tuple[Floats, Floats]:
    """1.0 where a draft is part of a block of 1, 2, ... cap drafts, and where a mismatch there could be forgiven;
    [cap, cap] each, a block a row."""
    position, length = np.arange(cap), np.arange(1, cap + 1)[:, None]
    return (position < length).astype(np.float64), (position < length - window).astype(np.float64)


def _block_seconds(costs: ForwardCosts, positions: int, option: Option) -> Floats:
    """Seconds of the sequence's round with 0, 1, ... cap drafts; [cap + 1]."""
    drafts, by_rows = row_seconds(costs.target, option.cap)
    seconds = by_rows + costs.fixed_part(1, positions)
    if option.per_turn and costs.draft is not None:
        turns = np.ceil(drafts / option.per_turn - 1e-9)
        seconds = seconds + turns * costs.draft.at(option.turn_rows)
    return seconds


@lru_cache(maxsize=256)
def row_seconds(target: RowCurve, cap: int) -> tuple[Floats, Floats]:
    """0, 1, ... cap drafts, and seconds of the rows that check them; the curve of the start never changes."""
    drafts = np.arange(cap + 1, dtype=np.float64)
    return drafts, target.over(drafts + 1)
