"""Prices: draft lengths one sequence after the other, at the rate that the round before was expected to have.

At a known rate (draft_length.py) each sequence can be decided alone: a draft is worth its reach, and costs what a row,
and its share of a forward of the draft model, take at that rate. No draft has to be ranked against those of others, so
this takes a tenth of the time. What they cost depends on what the others draft, so each sees the round as those before
it left it: the next row, and an equal share of a forward that all take part in.
"""

import math
from collections.abc import Iterable

from core.forward_costs import ForwardCosts, RowCurve
from scheduler.draft_option import Base, Choice, Option, least_reaches
from scheduler.given_blocks import Given
from scheduler.job import Job


class Prices:
    """One round's. rate: tokens per second. rows: of the target's forward so far. blocks: what was added. bounded: as in
    Base."""

    def __init__(self, costs: ForwardCosts, base: Base, rate: float) -> None:
        self._costs, self._rate = costs, rate
        self.rows, self.bounded = float(base.rows), base.bounded
        self._known = sum(base.draft_rows[:1])  # of the draft model's first forward, whatever is decided here
        self._sharing = 0.0  # rows that were added to it
        self.blocks: list[Given] = []

    def choose(self, options: Iterable[Option]) -> Choice:
        """What is worth most of what could draft for a sequence, at what it costs beside all that was added so far."""
        costs, rate = self._costs, self._rate
        per_row = costs.target.at(self.rows + 1) - costs.target.at(self.rows)
        best, choice, by_step = 0.0, Choice(), 0.0
        for option in options:
            step = 0.0
            if option.per_turn and costs.draft is not None:
                step = self._share(costs.draft, option.turn_rows)
            worth, drafts = _worth(option, rate * per_row, rate * step, rate * option.lag)
            if worth > best:
                best, choice, by_step = worth, Choice(option, drafts), step
        if choice.option is None or not by_step:
            return choice
        return Choice(choice.option, choice.num_drafts, *least_reaches(rate, per_row, by_step))

    def add(self, job: Job, choice: Choice, tokens: float) -> None:
        """Count what a job drafts, which the round is expected to deliver so many tokens for."""
        option, drafts = choice.option, choice.num_drafts
        if option is None:
            return
        turns = math.ceil(drafts / option.per_turn - 1e-9) if option.per_turn else 0
        self.blocks.append(Given(job, drafts, turns, tokens, option.turn_rows))
        self.rows += drafts
        self._sharing += option.turn_rows

    def _share(self, draft: RowCurve, rows: float) -> float:
        """Seconds of a forward that so many rows of a sequence share with all that were added."""
        sharing = self._sharing + rows
        return (draft.at(self._known + sharing) - draft.at(self._known)) * rows / sharing


def _worth(option: Option, row: float, turn: float, lag: float) -> tuple[float, int]:
    """In tokens, of the best number of its drafts, and that number. row, turn, lag: prices in tokens."""
    _, reach, later, cap, per_turn, *_ = option
    worth, best, number, paid = -lag, 0.0, 0, 0.0  # paid: drafts of the turns so far
    for draft in range(1, cap + 1):
        if reach <= row:
            break
        if per_turn and draft > paid + 1e-9:
            worth, paid = worth - turn, paid + per_turn
        worth += reach - row
        if worth > best:
            best, number = worth, draft
        reach *= later
    return best, number
