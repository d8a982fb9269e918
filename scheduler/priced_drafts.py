"""Prices: draft lengths one sequence after the other, at the rate that the round before was expected to have.

At a known rate (draft_length.py) each sequence can be decided alone: a draft is worth its reach, and costs what a row,
and its share of a forward of the draft model, take at that rate. No draft has to be ranked against those of others, so
this takes a tenth of the time. What they cost depends on what the others draft, so each sees the round as those before
it left it: the next row, and an equal share of a forward that all take part in.
"""

import math
from collections.abc import Iterable, Sequence

from core.forward_costs import ForwardCosts
from scheduler.draft_option import Base, Choice, Option, least_reaches
from scheduler.given_blocks import Given, with_all
from scheduler.job import Job

_FREE: Sequence[float] = ()


class Prices:
    """One round's. rate: tokens per second. rows: of the target's forward so far. blocks: what was added. bounded: as
    in Base."""

    def __init__(self, costs: ForwardCosts, base: Base, rate: float) -> None:
        self._costs, self._rate = costs, rate
        self.rows, self.bounded = float(base.rows), base.bounded
        self._base = base
        self._shares: list[float] = []  # seconds a row of each of the draft model's forwards, as `share_out` found
        self.blocks: list[Given] = []

    def choose(self, options: Iterable[Option]) -> Choice:
        """What is worth most of what could draft for a sequence, at what it costs beside all that was added so far."""
        costs, rate = self._costs, self._rate
        per_row = costs.target.at(self.rows + 1) - costs.target.at(self.rows)
        best, choice, by_step = 0.0, Choice(), 0.0
        for option in options:
            rows = option.turn_rows
            steps = [rate * rows * share for share in self._shares] if rows else _FREE
            worth, drafts = _worth(option, rate * per_row, steps, rate * option.lag)
            if worth > best:
                best, choice, by_step = worth, Choice(option, drafts), rows * self._shares[0] if rows else 0.0
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

    def share_out(self, longest: int) -> None:
        """Find what a row of each of the draft model's first `longest` forwards costs one more sequence: its equal part
        of what all that were added, and it, make the forward take longer."""
        draft, known = self._costs.draft, self._base.draft_rows
        together = with_all(self._base, self.blocks).draft_rows
        self._shares = [0.0] * longest
        if draft is None:
            return
        for step in range(longest):
            before = known[step] if step < len(known) else 0.0
            rows = (together[step] if step < len(together) else 0.0) + 1
            self._shares[step] = (draft.at(rows) - draft.at(before)) / (rows - before)


def _worth(option: Option, row: float, steps: Sequence[float], lag: float) -> tuple[float, int]:
    """In tokens, of the best number of its drafts, and that number. row, steps, lag: prices in tokens, those of the
    draft model's forwards one by one."""
    _, reach, later, cap, per_turn, *_ = option
    worth, best, number, turn, paid = -lag, 0.0, 0, 0, 0.0  # paid: drafts of the turns so far
    for draft in range(1, cap + 1):
        if reach <= row:
            break
        if per_turn and draft > paid + 1e-9:
            worth, turn, paid = worth - steps[turn], turn + 1, paid + per_turn
        worth += reach - row
        if worth > best:
            best, number = worth, draft
        reach *= later
    return best, number
