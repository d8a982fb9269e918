"""What a decision about draft lengths is made of: the ways to draft, the round around them, and what was chosen."""

from typing import NamedTuple

import numpy as np

from core.forward_costs import ForwardCosts

GUESSED_DRAFTS = 2.0
"""That a forward of the draft model yields where lookup has a guess for it, at the least worth counting on."""

_SUREST = 0.95  # highest reach that a draft model is asked for


class Option(NamedTuple):
    """One way to draft for a sequence. first, later: as in Acceptance. cap: the most drafts. per_turn: drafts that one
    forward of the draft model yields; 0 where it needs none. backlog: seconds before its first draft forward can draft;
    lag: the part of them that this round has to be worth. loosening: the chance that the verifier forgives
    a mismatch of it that has its window in the block; 0 where it never does."""

    drafter: str
    first: float
    later: float
    cap: int
    per_turn: float = 0.0
    lag: float = 0.0
    backlog: float = 0.0
    loosening: float = 0.0

    def expected(self, drafts: int) -> float:
        """How many of so many drafts are delivered on average."""
        return self.first * (1 - self.later**drafts) / (1 - self.later) if self.later < 1 else self.first * drafts

    @property
    def turn_rows(self) -> float:
        """Rows of a turn: of lookup's guesses, which more than one draft a turn come from, about half are right."""
        if not self.per_turn:
            return 0.0
        rows = 2 * self.per_turn - 1
        return rows if rows > 1.0 else 1.0


class Base(NamedTuple):
    """What the round does whatever is decided here. tokens: that it delivers. rows, sequences, positions: of the
    target's forward. draft_rows: of the draft model's forwards. most_seconds: the round may take no longer. prompts:
    seconds in which it reads prompts, which has to be done some time and so is no part of its rate."""

    tokens: float
    rows: int
    sequences: int
    positions: int
    draft_rows: tuple[float, ...] = ()
    most_seconds: float = float("inf")
    prompts: float = 0.0

    @property
    def bounded(self) -> bool:
        return self.most_seconds < float("inf")


class Choice(NamedTuple):
    """option: None for no drafts. min_reach: below, a draft would not have been worth its draft forward;
    min_guessed_reach: likewise, of one that yields GUESSED_DRAFTS."""

    option: Option | None = None
    num_drafts: int = 0
    min_reach: float = 0.0
    min_guessed_reach: float = 0.0


def base_seconds(costs: ForwardCosts, base: Base) -> float:
    """Of the round without any drafts of ours."""
    seconds = costs.verify(base.rows, base.sequences, base.positions)
    if costs.draft is not None and base.draft_rows:
        seconds += float(costs.draft.over(np.array(base.draft_rows)).sum())
    return seconds


def cheapest_row(costs: ForwardCosts, base: Base, most: int) -> float:
    """Seconds of one of up to `most` more rows, where they come cheapest."""
    seconds = costs.target.over(base.rows + np.arange(most + 1, dtype=np.float64))
    return float(((seconds[1:] - seconds[0]) / np.arange(1, most + 1)).min())


def least_reaches(rate: float, per_row: float, step: float) -> tuple[float, float]:
    """The chance of being delivered that a draft must have at a rate in tokens a second, if its row takes `per_row`
    seconds and its draft forward `step`: where that yields no other draft, and where it yields GUESSED_DRAFTS. 0 where
    there is no draft forward."""
    if not step:
        return 0.0, 0.0
    alone, guessed = rate * (per_row + step), rate * (per_row + step / GUESSED_DRAFTS)
    return min(alone, _SUREST), min(guessed, _SUREST)
