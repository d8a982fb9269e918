"""Loose draft lengths of many sequences at once: what choose_block says of each, to the bit, in an eighth of the time.

All options are weighed side by side, so each operation is one of numpy's over all of them, and no number of a
sequence has a part in another's. The order of additions is that of loose_length.py: numpy adds up a row of fewer than
eight numbers one by one, a longer one in eight interleaved sums with the rest behind, and zeros behind that rest change
nothing. So an option may share a table, as wide as the longest needs, with those that have the same number of whole
eights.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from core.forward_costs import Floats, ForwardCosts, RowCurve
from scheduler.draft_option import Option
from scheduler.loose_length import NO_ROOM, Ask, Block, Length, choose_block, pick, row_seconds

_FEW = 4  # sequences that are weighed one by one as fast

_Members = list[tuple[Ask, Option]]


def choose_blocks(costs: ForwardCosts, asks: Sequence[Ask]) -> list[Block]:
    """Each sequence's block, weighed as if it were alone."""
    if len(asks) < _FEW:
        return [choose_block(costs, ask) for ask in asks]
    tables: dict[tuple[int, int], _Members] = {}
    for ask in asks:
        for option in ask.options:
            tables.setdefault((option.cap // 8, ask.window), []).append((ask, option))
    found = {key: _lengths(costs, key[1], members) for key, members in tables.items()}
    return [pick(costs, ask, [next(found[o.cap // 8, ask.window]) for o in ask.options]) for ask in asks]


def _lengths(costs: ForwardCosts, window: int, members: _Members) -> Iterator[tuple[Length, Length]]:
    """Of each member what `pick` asks for; all have this window."""
    first, later, caps, per_turn, loosening, positions, turn_seconds = np.array(
        [
            (
                o.first,
                o.later,
                o.cap,
                o.per_turn or 1.0,
                o.loosening,
                ask.positions,
                _turn_seconds(costs.draft, o),
            )
            for ask, o in members
        ]
    ).T
    longest = int(caps.max())
    drafts, by_rows = row_seconds(costs.target, longest)
    turns = np.ceil(drafts / per_turn[:, None] - 1e-9)
    fixed = costs.fixed_part(1, 0) + costs.per_position * positions
    seconds = by_rows + fixed[:, None] + turns * turn_seconds[:, None]
    tokens = 1 + _expected_drafts(first, later, loosening, longest, window)
    rates = np.where(drafts <= caps[:, None], tokens / seconds, -np.inf)
    each = np.arange(len(members))

    def taken(at: npt.NDArray[np.int64]) -> Iterator[Length]:
        rate, delivered, took = (table[each, at].tolist() for table in (rates, tokens, seconds))
        return zip(rate, at.tolist(), delivered, took, strict=True)

    roomy: Iterator[Length] = itertools.repeat(NO_ROOM, len(members))
    if not window:
        return zip(taken(rates.argmax(axis=1)), roomy, strict=True)
    if longest > window:
        roomy = taken(window + 1 + rates[:, window + 1 :].argmax(axis=1))
    return zip(taken(rates[:, : window + 1].argmax(axis=1)), roomy, strict=True)


def _expected_drafts(first: Floats, later: Floats, loosening: Floats, longest: int, window: int) -> Floats:
    """How many drafts of a block of 0, 1, ... `longest` are delivered on average; [members, longest + 1].

    first, later, loosening: as in Option; [members] each.
    """
    reach = np.zeros((longest + 1, len(first), longest))  # of each length's drafts, 0 behind its end
    for draft in range(longest):
        right = later if draft else first
        forgiven = right + (1 - right) * loosening
        before = reach[draft + 1 :, :, draft - 1] if draft else np.ones((longest, len(first)))
        reach[draft + 1 : draft + 1 + window, :, draft] = before[:window] * right
        reach[draft + 1 + window :, :, draft] = before[window:] * forgiven
    delivered: Floats = reach.sum(axis=2).T
    return delivered


def _turn_seconds(draft: RowCurve | None, option: Option) -> float:
    return draft.at(option.turn_rows) if draft is not None and option.per_turn else 0.0
