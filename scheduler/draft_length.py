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

import numpy as np
import numpy.typing as npt

from core.forward_costs import Floats, ForwardCosts

Places = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Rows and columns in a table of options and their drafts."""

_ROUNDS = 4  # of Dinkelbach's method, which has settled by then
_LEAST_GAIN = 1e-9  # below, a better rate is rounding
_SUREST = 0.95  # highest reach that a draft model is asked for


class Option(NamedTuple):
    """One way to draft for a sequence. first, later: as in Acceptance. cap: the most drafts. per_turn: drafts that one
    forward of the draft model yields; 0 where it needs none. lag: seconds before its first draft forward can draft."""

    drafter: str
    first: float
    later: float
    cap: int
    per_turn: float = 0.0
    lag: float = 0.0

    @property
    def turn_rows(self) -> float:
        """Rows of a turn: of lookup's guesses, which more than one draft a turn come from, about half are right."""
        return max(1.0, 2 * self.per_turn - 1) if self.per_turn else 0.0


class Base(NamedTuple):
    """What the round does whatever is decided here. tokens: that it delivers. rows, sequences, positions: of the
    target's forward. draft_rows: of the draft model's forwards. most_seconds: the round may take no longer."""

    tokens: float
    rows: int
    sequences: int
    positions: int
    draft_rows: tuple[float, ...] = ()
    most_seconds: float = float("inf")


class Choice(NamedTuple):
    """option: None for no drafts. min_reach: below, a draft would not have been worth its draft forward."""

    option: Option | None = None
    num_drafts: int = 0
    min_reach: float = 0.0


class Verdict(NamedTuple):
    """choices: one per sequence. seconds, rate: what the round is expected to take and to deliver per second."""

    choices: tuple[Choice, ...]
    seconds: float
    rate: float


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


def choose_drafts(costs: ForwardCosts, base: Base, options: Sequence[Sequence[Option]]) -> Verdict:
    """The best drafter and number of drafts for each sequence, which may have no options at all."""
    seconds = base_seconds(costs, base)
    best = Verdict((Choice(),) * len(options), seconds, base.tokens / seconds)
    flat = _hopeful(costs, base, options, best.rate)
    if not flat:
        return best
    table = _Table(costs, base, seconds, flat)
    for _ in range(_ROUNDS):
        found = table.improved(best)
        if found.rate <= best.rate * (1 + _LEAST_GAIN):
            break
        best = found
    return best


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


class _Table:
    """All options' drafts side by side: one row an option, one column a draft."""

    def __init__(self, costs: ForwardCosts, base: Base, seconds: float, flat: Sequence[tuple[int, Option]]) -> None:
        self.costs, self.base, self.seconds = costs, base, seconds
        self.options = [option for _, option in flat]
        self.owner = np.array([index for index, _ in flat])
        first, later, caps, self.per_turn, self.lag, self.turn_rows = np.array(
            [(o.first, o.later, o.cap, o.per_turn, o.lag, o.turn_rows) for o in self.options]
        ).T
        steps = np.arange(int(caps.max()))
        self.there = steps < caps[:, None]
        self.reach = np.where(self.there, first[:, None] * later[:, None] ** steps, 0.0)
        self.uses_model = self.per_turn > 0
        self.alone = len(set(self.owner.tolist())) == 1
        # A draft opens a turn of the draft model if the turn before it has no more to give.
        per_turn = np.where(self.uses_model, self.per_turn, 1.0)[:, None]
        self.turn = np.ceil((steps + 1) / per_turn - 1e-9).astype(np.int64) - 1
        before = np.ceil(steps / per_turn - 1e-9).astype(np.int64) - 1
        self.opens = self.uses_model[:, None] & (self.turn > before)
        self.row_seconds = self._row_seconds(len(steps))
        self.shares = self._shares()

    def improved(self, known: Verdict) -> Verdict:
        """The best of the rankings that the known rate gives; `known` if none is better.

        How dear a step of the draft model is depends on how many share it, which is what is to be found: both ends
        are tried.
        """
        best = known
        for share in self.shares:
            found = self._verdict(known, share)
            if found.rate > best.rate:
                best = found
        return best

    def _verdict(self, known: Verdict, share: Floats) -> Verdict:
        sequences = len(known.choices)
        picked = self._kinds(known.rate, share, sequences)
        if not len(picked):
            return known
        order = self._ranking(picked, known.rate, share)
        if not len(order[0]):
            return known
        tokens = self.base.tokens + np.cumsum(self.reach[order])
        rows = self.base.rows + np.arange(1, len(tokens) + 1)
        seconds = self.costs.target.over(rows.astype(np.float64)) - self.costs.target.at(self.base.rows)
        seconds += self.seconds + self._drafting(order)
        rates = np.where(seconds <= self.base.most_seconds, tokens / seconds, 0.0)
        at = int(rates.argmax())
        if rates[at] <= known.rate:
            return known
        choices = self._choices(order[0][: at + 1], float(rates[at]), share, sequences)
        return Verdict(choices, float(seconds[at]), float(rates[at]))

    def _row_seconds(self, longest: int) -> Floats:
        """Of each draft's row: exact for one sequence, otherwise as cheap as a row can get; [longest]."""
        if self.alone:
            return np.diff(self.costs.target.over(self.base.rows + np.arange(longest + 1, dtype=np.float64)))
        most = len(self.options) * longest
        return np.full(longest, cheapest_row(self.costs, self.base, most))

    def _shares(self) -> list[Floats]:
        """Seconds per draft of each option, if all that could share its step do, and if none does; [options] each."""
        if self.costs.draft is None or not self.uses_model.any():
            return [np.zeros(len(self.options))]
        base = float(sum(self.base.draft_rows[:1]))
        per_draft = np.where(self.uses_model, 1 / np.where(self.uses_model, self.per_turn, 1.0), 0.0)
        most = float(len(set(self.owner[self.uses_model].tolist())))
        steps = [self.costs.draft.over(base + self.turn_rows * n) - self.costs.draft.at(base) for n in {1.0, most}]
        return [step / n * per_draft for step, n in zip(steps, {1.0, most}, strict=True)]

    def _kinds(self, rate: float, share: Floats, sequences: int) -> npt.NDArray[np.int64]:
        """Per sequence the option worth most at this rate, as a row of the table; those worth nothing left out."""
        seconds = self.row_seconds + share[:, None]
        if self.alone:  # a turn is paid by the draft that opens it
            seconds = self.row_seconds + self.opens * (share * self.per_turn)[:, None]
        worth = np.cumsum(np.where(self.there, self.reach - rate * seconds, -np.inf), axis=1)
        best = worth.max(axis=1) - rate * self.lag
        chosen = np.full(sequences, -1, dtype=np.int64)
        most = [0.0] * sequences
        for row, (owner, value) in enumerate(zip(self.owner.tolist(), best.tolist(), strict=True)):
            if value > most[owner]:
                most[owner], chosen[owner] = value, row
        return chosen[chosen >= 0]

    def _ranking(self, picked: npt.NDArray[np.int64], rate: float, share: Floats) -> Places:
        """The picked options' drafts, the best first, each sequence's in their order."""
        keys = self.reach[picked] - rate * share[picked, None]
        keys[:, 0] -= rate * self.lag[picked]
        keys = np.where(self.there[picked], np.minimum.accumulate(keys, axis=1), -np.inf)
        if self.alone:  # behind the draft that pays for a turn others may be free
            order = np.arange(int(self.there[picked].sum()))
        else:
            hopeful = np.flatnonzero(keys > 0)
            order = hopeful[np.argsort(-keys.ravel()[hopeful], kind="stable")]
        rows, columns = np.divmod(order, keys.shape[1])
        return picked[rows], columns

    def _drafting(self, order: Places) -> Floats:
        """Seconds of the draft model's forwards for each leading part of the ranking."""
        rows, columns = order
        added = np.where(columns == 0, self.lag[rows], 0.0)
        opening = np.flatnonzero(self.opens[rows, columns])
        if self.costs.draft is not None and len(opening):
            turns = self.turn[rows[opening], columns[opening]]
            by_turn = np.argsort(turns, kind="stable")
            turns, weights = turns[by_turn], self.turn_rows[rows[opening][by_turn]]
            so_far = np.cumsum(weights)
            starts = np.flatnonzero(np.diff(turns, prepend=-1))
            before = np.repeat(so_far[starts] - weights[starts], np.diff(starts, append=len(turns)))
            given = np.zeros(int(turns.max()) + 1)
            known = np.array(self.base.draft_rows)[: len(given)]
            given[: len(known)] = known
            after = given[turns] + so_far - before
            added[opening[by_turn]] += self.costs.draft.over(after) - self.costs.draft.over(after - weights)
        return np.cumsum(added)

    def _choices(self, taken: npt.NDArray[np.int64], rate: float, share: Floats, sequences: int) -> tuple[Choice, ...]:
        """taken: the option of each draft that is part of the round."""
        choices = [Choice()] * sequences
        rows = float(self.base.rows)
        per_row = (self.costs.target.at(rows + len(taken)) - self.costs.target.at(rows)) / len(taken)
        for row, count in enumerate(np.bincount(taken).tolist()):
            if count:
                option = self.options[row]
                least = min(rate * (per_row + float(share[row])), _SUREST) if option.per_turn else 0.0
                choices[int(self.owner[row])] = Choice(option, count, least)
        return tuple(choices)
