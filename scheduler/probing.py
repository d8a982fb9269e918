"""Probes: drafts that are not expected to pay, but show whether drafting does again.

Where nothing pays nothing is drafted, so nothing would ever be learnt again. Each drafter of a sequence that has not
drafted for a pause, which doubles after each failure, is due for a draft or two. Strict sequences pay for theirs out
of an allowance of PROBING of the rounds' time. The first in line is saved for: who is cheap, or has waited long. Once
it goes, a step of the draft model is paid for that is nearly free for the next, so several probe together.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from core.forward_costs import ForwardCosts
from scheduler.draft_option import Base, Option
from scheduler.drafting import LONGEST_PAUSE, Drafting, Pause, Wish
from scheduler.job import Job

PROBING = 0.02
SAVED_ROUNDS = 4  # of allowance at most, and of debt
MOST_PROBES = 8  # of one round
PROBE_DRAFTS = {True: 1, False: 2}  # with the draft model, without


class Candidate(NamedTuple):
    """A job whose probe with this option is due."""

    job: Job
    option: Option
    match: int
    pause: Pause

    @property
    def wish(self) -> Wish:
        return probe(self.option, self.match)


@dataclass(slots=True)
class Load:
    """The round as far as it is planned. rows: of the target. draft_rows: of the draft model's first step."""

    seconds: float
    rows: float
    draft_rows: float


class Probes:
    """One per engine, used between rounds only."""

    def __init__(self) -> None:
        self._allowance = 0.0  # seconds
        self._per_token = 0.0  # seconds, in the round that was planned last

    def earn(self, seconds: float, rate: float) -> None:
        """A round is about to take so many seconds, and to deliver at this rate."""
        saved = SAVED_ROUNDS * seconds
        # A debt is bounded too: else one sequence with a long text to read would keep all others from theirs.
        self._allowance = max(-saved, min(self._allowance + PROBING * seconds, saved))
        self._per_token = 1 / rate

    def refund(self, tokens: int) -> None:
        """A probe delivered so many more tokens, which has paid for as much of it."""
        self._allowance += tokens * self._per_token

    def plan(self, candidates: Iterable[Candidate], load: Load, base: Base, costs: ForwardCosts) -> None:
        """Set the wishes of those that the allowance lasts for. One that costs more than can be saved runs it into
        debt: were it never tried, a cost that was measured wrong would stay so."""
        saved, granted = SAVED_ROUNDS * load.seconds, 0
        waiting = [one for one in candidates if not self._go_on(one)]
        if self._allowance <= 0:
            return
        waiting.sort(key=lambda one: self._place(one, load, costs))
        for one in waiting:
            price, own = self._price(one, load, costs), _own_seconds(one, load, costs)
            if load.seconds + own > base.most_seconds:
                continue
            if granted == MOST_PROBES or min(price, saved) > self._allowance:
                return
            one.job.drafting.wish, one.pause.paid = one.wish, True
            self._allowance -= price
            load.seconds += own
            load.rows += one.wish.num_drafts
            load.draft_rows += one.option.turn_rows
            granted += 1

    def _place(self, one: Candidate, load: Load, costs: ForwardCosts) -> tuple[bool, float]:
        waited = 1 + one.pause.overdue / LONGEST_PAUSE
        return not one.pause.promising, self._price(one, load, costs) / waited

    def _go_on(self, one: Candidate) -> bool:
        """Whether it is paid for, and the draft model still catching up for it."""
        if one.pause.paid:
            one.job.drafting.wish = one.wish
        return one.pause.paid

    def _price(self, one: Candidate, load: Load, costs: ForwardCosts) -> float:
        """Seconds, those of reading the text beforehand and of tokens that a better wish would bring among them."""
        wish = one.job.drafting.wish
        lost = wish.tokens - 1 if wish is not None else 0.0
        return _own_seconds(one, load, costs) + one.option.backlog + lost * self._per_token


def _own_seconds(one: Candidate, load: Load, costs: ForwardCosts) -> float:
    """By which its round is longer."""
    seconds = costs.target.at(load.rows + one.wish.num_drafts) - costs.target.at(load.rows)
    if one.option.per_turn and costs.draft is not None:
        seconds += costs.draft.at(load.draft_rows + one.option.turn_rows) - costs.draft.at(load.draft_rows)
    return seconds


def probe(option: Option, match: int) -> Wish:
    drafts = min(option.cap, PROBE_DRAFTS[option.per_turn > 0])
    return Wish(option.drafter, drafts, match=match, probe=True, forgivable=option.loosening > 0.0)


def due(drafting: Drafting, options: Iterable[Option]) -> tuple[Option, Pause] | None:
    """The option whose drafter's pause is over for longest, if one is."""
    found: tuple[Option, Pause] | None = None
    for option in options:
        if option.drafter == "none" or option.cap < 1:
            continue
        pause = drafting.pause(option.drafter)
        if pause.overdue >= 0 and (found is None or pause.overdue > found[1].overdue):
            found = option, pause
    return found
