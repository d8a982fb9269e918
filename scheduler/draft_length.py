"""How many tokens to draft: as many as pay. Pure functions; docs/draft-length.md explains them with an example.

A round is worth the tokens it delivers per second. With k_i drafts for sequence i

    rate = sum_i (1 + reach_i(1) + ... + reach_i(k_i)) / (V(rows) + D(step 1) + D(step 2) + ...)

where reach_i(s) is the chance that its s-th draft is reached and accepted, V what the target's forward costs over
all rows, and D what a forward of the draft model costs over the sequences that still draft in that step. A draft
pays if its chance is worth more than its seconds would deliver at the round's own rate:

    reach_i(s) > rate * (its row's part of V + its share of D)

So drafts are ranked by what is left of reach after its share of D, and the best leading part of that ranking, none
included, is taken. The rate that the right side needs is the result of the step before (Dinkelbach's method).
"""

from collections.abc import Sequence
from typing import NamedTuple

from core.forward_costs import ForwardCosts
from scheduler.draft_option import Base, Choice, Option, base_seconds, cheapest_row
from scheduler.draft_table import Found, Table

_ROUNDS = 4  # of Dinkelbach's method, which has settled by then
_LEAST_GAIN = 1e-9  # below, a better rate is rounding
_NEAR = 0.005  # of a guess, which is good enough if it comes true


class Verdict(NamedTuple):
    """choices: one per sequence. seconds: what the round is expected to take, backlogs left out, which are read in
    rounds before it. rate: what it is expected to deliver per second, its parts of them counted."""

    choices: tuple[Choice, ...]
    seconds: float
    rate: float


def choose_drafts(costs: ForwardCosts, base: Base, options: Sequence[Sequence[Option]], guess: float = 0.0) -> Verdict:
    """The best drafter and number of drafts for each sequence, which may have no options at all.

    guess: what the rate may well be, as that of the round before; a good one saves some of the work.
    """
    seconds = base_seconds(costs, base)
    rate = base.tokens / (seconds - base.prompts)
    nothing = Verdict((Choice(),) * len(options), seconds, rate)
    flat = _hopeful(costs, base, options, rate)
    if not flat:
        return nothing
    table = Table(costs, base, seconds, flat)
    best: Found | None = None
    for asked in (guess, *[0.0] * _ROUNDS):
        known = rate if best is None else best.rate
        if asked and asked <= known:
            continue
        found = table.best(asked or known)
        if found is not None and found.rate > known * (1 + _LEAST_GAIN):
            best = found
            if asked and found.rate > asked * (1 - _NEAR):  # no other drafts could bring more than that
                break
        elif not asked:
            break
    return nothing if best is None else Verdict(table.choices(best, len(options)), best.seconds, best.rate)


def _hopeful(
    costs: ForwardCosts, base: Base, options: Sequence[Sequence[Option]], rate: float
) -> list[tuple[int, Option]]:
    """The options, each with its sequence, whose first draft is worth more than the cheapest row and the smallest
    share of a draft step could cost. Under high load that is none, and so the rule costs next to nothing."""
    most = sum(max((option.cap for option in mine), default=0) for mine in options)
    if not most:
        return []
    row = rate * cheapest_row(costs, base, most)
    step = 0.0
    if costs.draft is not None:
        known = sum(base.draft_rows[:1])
        step = rate * (costs.draft.at(known + len(options)) - costs.draft.at(known)) / len(options)
    return [
        (index, option)
        for index, mine in enumerate(options)
        for option in mine
        if option.cap > 0 and option.first > row + (step / option.per_turn if option.per_turn else 0.0)
    ]
