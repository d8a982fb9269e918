"""Draft lengths under loose verifiers: a pure function of the request's settings, its own history and frozen costs.

Where a block of drafts ends is part of a loose rule's meaning (ALGORITHMS 2), so neither load nor neighbours may
move it: the block is weighed as if the sequence were alone. What is right is counted as for strict ones, and
mismatches that the verifier forgives are added: behind a mismatch FLy wants `window` matches inside the block, so
only a draft with so many behind it can be forgiven.

    reach(s) = product over j = 1 .. s of  right(j) + (1 - right(j)) * loosening   if j <= k - window
                                           right(j)                                otherwise

A block no longer than the window makes such a verifier strict. Of two lengths that are worth nearly the same, the
one with room behind a mismatch is taken, and drafted to its end: where the draft model is in doubt a mismatch is near,
which can be forgiven only for what follows it. Any other block ends early there like a strict one, the chance of being
forgiven counted in: what the draft model says depends on the sequence's own text alone, too.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from core.forward_costs import Floats, ForwardCosts, RowCurve
from scheduler.draft_option import Choice, Option, least_reaches

NEARLY = 0.97  # of the best rate


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


def choose_block(
    costs: ForwardCosts, positions: int, options: Sequence[Option], window: int, loosening: float
) -> tuple[Choice, float, float]:
    """The block of a sequence that is weighed as if alone, the tokens it is expected to deliver, and its seconds.

    positions: its context. window: that the verifier wants behind a mismatch; 0 if none.
    """
    plain = costs.verify(1, 1, positions)
    best, roomy = (1 / plain, Choice(), 1.0, plain), (0.0, Choice(), 1.0, plain)
    for option in options:
        tokens = 1 + expected_drafts(option, window, loosening)
        seconds = _block_seconds(costs, positions, option)
        rates = tokens / seconds
        at = int(rates.argmax())
        if at and rates[at] > best[0]:
            best = (float(rates[at]), Choice(option, at), float(tokens[at]), float(seconds[at]))
        if option.cap > window:
            at = window + 1 + int(rates[window + 1 :].argmax())
            if rates[at] > roomy[0]:
                roomy = (float(rates[at]), Choice(option, at), float(tokens[at]), float(seconds[at]))
    taken = roomy if window and roomy[0] >= NEARLY * best[0] else best
    rate, choice = taken[:2]
    roomy_one = window > 0 and choice.num_drafts > window
    if choice.option is not None and choice.option.per_turn and costs.draft is not None and not roomy_one:
        per_row = costs.target.at(choice.num_drafts + 2) - costs.target.at(choice.num_drafts + 1)
        reaches = least_reaches(rate, per_row, costs.draft.at(choice.option.turn_rows))
        choice = choice._replace(min_reach=reaches[0], min_guessed_reach=reaches[1])
    return choice, *taken[2:]


def _block_seconds(costs: ForwardCosts, positions: int, option: Option) -> Floats:
    """Seconds of the sequence's round with 0, 1, ... cap drafts; [cap + 1]."""
    drafts, by_rows = _row_seconds(costs.target, option.cap)
    seconds = by_rows + costs.fixed_part(1, positions)
    if option.per_turn and costs.draft is not None:
        turns = np.ceil(drafts / option.per_turn - 1e-9)
        seconds = seconds + turns * costs.draft.at(option.turn_rows)
    return seconds


@lru_cache(maxsize=256)
def _row_seconds(target: RowCurve, cap: int) -> tuple[Floats, Floats]:
    """0, 1, ... cap drafts, and seconds of the rows that check them; the curve of the start never changes."""
    drafts = np.arange(cap + 1, dtype=np.float64)
    return drafts, target.over(drafts + 1)
