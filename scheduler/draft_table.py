"""Table: all drafts that could be made in a round, side by side, and the best leading part of their ranking."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from core.forward_costs import Floats, ForwardCosts
from scheduler.draft_option import Base, Choice, Option, cheapest_row, least_reaches

Places = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Rows and columns in a table of options and their drafts."""


class Found(NamedTuple):
    """taken: the option of each draft that is part of the round, as a row of the table. share: seconds per draft of
    each option that its ranking went by."""

    rate: float
    seconds: float
    taken: npt.NDArray[np.int64]
    share: Floats


class Table:
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
        self.starts = np.flatnonzero(np.append(True, self.owner[1:] != self.owner[:-1]))  # options of one owner follow
        self.counts = np.append(self.starts[1:], len(self.owner)) - self.starts
        self.alone = len(self.starts) == 1
        # A draft opens a turn of the draft model if the turn before it has no more to give.
        per_turn = np.where(self.uses_model, self.per_turn, 1.0)[:, None]
        self.turn = np.ceil((steps + 1) / per_turn - 1e-9).astype(np.int64) - 1
        before = np.ceil(steps / per_turn - 1e-9).astype(np.int64) - 1
        self.opens = self.uses_model[:, None] & (self.turn > before)
        self.row_seconds = self._row_seconds(len(steps))
        self.shares = self._shares()

    def best(self, rate: float) -> Found | None:
        """The best leading part of the ranking that this rate gives; None if nothing would be drafted.

        How dear a step of the draft model is depends on how many share it, which is what is to be found: at first
        both ends are tried, then the better one.
        """
        found = [one for share in self.shares if (one := self._leading_part(rate, share)) is not None]
        if not found:
            return None
        best = max(found, key=lambda one: one.rate)
        self.shares = [best.share]
        return best

    def _leading_part(self, rate: float, share: Floats) -> Found | None:
        picked = self._kinds(rate, share)
        if not len(picked):
            return None
        order = self._ranking(picked, rate, share)
        if not len(order[0]):
            return None
        tokens = self.base.tokens + np.cumsum(self.reach[order])
        rows = self.base.rows + np.arange(1, len(tokens) + 1)
        seconds = self.costs.target.over(rows.astype(np.float64)) - self.costs.target.at(self.base.rows)
        seconds += self.seconds + self._drafting(order)
        lags = np.cumsum(np.where(order[1] == 0, self.lag[order[0]], 0.0))
        rates = np.where(seconds <= self.base.most_seconds, tokens / (seconds - self.base.prompts + lags), 0.0)
        at = int(rates.argmax())
        return Found(float(rates[at]), float(seconds[at]), order[0][: at + 1], share)

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

    def _kinds(self, rate: float, share: Floats) -> npt.NDArray[np.int64]:
        """Per sequence the option worth most at this rate, as a row of the table; those worth nothing left out."""
        seconds = self.row_seconds + share[:, None]
        if self.alone:  # a turn is paid by the draft that opens it
            seconds = self.row_seconds + self.opens * (share * self.per_turn)[:, None]
        worth = np.cumsum(np.where(self.there, self.reach - rate * seconds, -np.inf), axis=1)
        if self.alone and self.base.bounded:  # what there is no time for must not stand in the way of what there is
            fits = self.seconds + np.cumsum(seconds, axis=1) <= self.base.most_seconds
            worth = np.where(fits, worth, -np.inf)
        best = worth.max(axis=1) - rate * self.lag
        top = np.repeat(np.maximum.reduceat(best, self.starts), self.counts)
        rows = np.flatnonzero((best == top) & (best > 0))
        owners = self.owner[rows]
        return rows[np.append(True, owners[1:] != owners[:-1])] if len(rows) else rows

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
        added = np.zeros(len(rows))
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

    def choices(self, found: Found, sequences: int) -> tuple[Choice, ...]:
        choices = [Choice()] * sequences
        rows, taken = float(self.base.rows), len(found.taken)
        # One draft more would add the next row, not one that costs as little as those that are taken do on average.
        per_row = self.costs.target.at(rows + taken + 1) - self.costs.target.at(rows + taken)
        for row, count in enumerate(np.bincount(found.taken).tolist()):
            if count:
                option = self.options[row]
                step = float(found.share[row]) * option.per_turn
                choices[int(self.owner[row])] = Choice(option, count, *least_reaches(found.rate, per_row, step))
        return tuple(choices)
