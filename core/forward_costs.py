"""What forwards cost on this machine: the target's by rows, sequences and context, the draft's by rows.

Measured at start-up, corrected while serving by every round that only decodes. Draft lengths are weighed
with it (docs/draft-length.md): strict sequences with the figures of late, loose ones with those of the
start, which nothing changes afterwards, since their answers depend on where draft blocks end.

Rows count as they are given: that a recorded CUDA graph pads them to a rectangle is in the figures only as far as
rounds show it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from core.drafters.base import DraftStep

Floats = npt.NDArray[np.float64]

_SMOOTHING = 0.1  # of a round's surprise, what is believed
_COMMON = 0.3  # of that, what is taken for the whole machine's, whatever the rows
_LARGEST_SURPRISE = 2.0  # a round held up by something else says little
_FIRST_SURPRISE = 8.0  # beyond the measured rows, where nothing better is known
_BESIDE = 0.5  # of what a round takes too long, what is taken for work that its rows have no part in


class RowCurve:
    """Seconds of a forward by its rows: straight lines between the measured points, the last slope behind them.

    More rows never cost less: a point above a later one was spoiled by something else on the machine. No rows cost
    nothing; one point alone stands for a cost in proportion to the rows.
    """

    __slots__ = ("_heights", "_rows", "_seconds", "_slope", "_steps", "points")

    def __init__(self, points: Mapping[int, float]) -> None:
        """points: seconds by rows. ValueError if there is none, or one is not above 0."""
        if not points or any(rows < 1 or not seconds > 0 for rows, seconds in points.items()):
            raise ValueError(f"a cost curve needs positive rows with positive seconds, got {dict(points)}")
        self.points = dict(sorted(points.items()))
        self._rows = np.array([0, *self.points], dtype=np.float64)
        rising = np.minimum.accumulate(np.array(list(self.points.values()))[::-1])[::-1].tolist()
        self.points = dict(zip(self.points, rising, strict=True))
        self._seconds = np.array([0.0, *rising])
        self._steps: list[float] = self._rows.tolist()
        self._heights: list[float] = self._seconds.tolist()
        self._slope = float((self._seconds[-1] - self._seconds[-2]) / (self._rows[-1] - self._rows[-2]))

    @property
    def largest(self) -> int:
        return int(self._rows[-1])

    def over(self, rows: Floats) -> Floats:
        """Seconds for each of these numbers of rows; below the first point its seconds, 0 for none."""
        inside = np.interp(rows, self._rows[1:], self._seconds[1:])
        found = inside + self._slope * np.maximum(rows - self._rows[-1], 0.0)
        return np.where(rows > 0, found, 0.0)

    def at(self, rows: float) -> float:
        """`over` of one number, a tenth of its time."""
        known, seconds = self._steps, self._heights
        if rows <= 0:
            return 0.0
        at = bisect_left(known, rows)
        if at == len(known):
            return seconds[-1] + self._slope * (rows - known[-1])
        if at <= 1:  # known[0] is no rows
            return seconds[1]
        return seconds[at - 1] + (seconds[at] - seconds[at - 1]) * (rows - known[at - 1]) / (known[at] - known[at - 1])

    def times(self, company: int) -> "RowCurve":
        """Seconds by the rows of one of so many that have the same number each."""
        rows = range(1, -(-self.largest // company) + 2)  # two points behind the last, for its slope
        return RowCurve({n: self.at(company * n) for n in rows})

    def corrected(self, rows: int, factor: float) -> "RowCurve":
        """The curve after a forward of `rows` rows took `factor` times what it says: the points next to it move, and
        push those out of the way that would then say that more rows cost less.

        Behind the last point its slope was but a guess: a new point, at the next power of two, takes up what was seen
        as far as the round went there, and says at least that rows cost half of what they were thought to: were they
        thought to be free, far too many would be drafted before the curve knew better.
        """
        if rows > self.largest:
            return self._extended(rows, min(factor, _FIRST_SURPRISE))
        factor = min(max(factor, 1 / _LARGEST_SURPRISE), _LARGEST_SURPRISE)
        known = list(self.points)
        at = bisect_left(known, rows)
        if at == 0:
            near = {known[0]: 1.0}
        else:
            low, high = known[at - 1], known[at]
            near = {low: (high - rows) / (high - low), high: (rows - low) / (high - low)}
        moved = np.array(
            [
                seconds * (1 + _SMOOTHING * (factor - 1) * (_COMMON + (1 - _COMMON) * near.get(n, 0.0)))
                for n, seconds in self.points.items()
            ]
        )
        if factor > 1:
            moved = np.maximum.accumulate(moved)  # otherwise a point could rise unseen behind one that lies lower
        return RowCurve(dict(zip(known, moved.tolist(), strict=True)))

    def _extended(self, rows: int, factor: float) -> "RowCurve":
        last, end = self.points[self.largest], 1 << (rows - 1).bit_length()
        expected = self.at(end)
        way = (rows - self.largest) / (end - self.largest)
        seen = last + (self.at(rows) * factor - last) / way
        told = min(1.0, 2 * way)  # a round that hardly goes beyond tells little: what it took by chance is far too much
        least = last + (expected - last) / _LARGEST_SURPRISE
        return RowCurve(self.points | {end: max(least, expected + told * (seen - expected))})


@dataclass(frozen=True, slots=True)
class ForwardCosts:
    """Seconds of forwards, or anything in proportion to them. per_sequence: of the target's for every sequence beyond
    the first; per_position: for every position of context that its sequences attend to; per_round: of what a round
    does beside its forwards. draft: None without a draft model."""

    target: RowCurve
    draft: RowCurve | None = None
    per_sequence: float = 0.0
    per_position: float = 0.0
    per_round: float = 0.0

    def fixed_part(self, sequences: int, positions: int) -> float:
        """Of a target forward: what its drafts do not change. positions: of all its sequences together."""
        return self.per_round + self.per_sequence * max(sequences - 1, 0) + self.per_position * positions

    def times(self, company: int) -> "ForwardCosts":
        """The same by what one of so many sequences has, all of which do alike."""
        if company == 1:
            return self
        draft = None if self.draft is None else self.draft.times(company)
        rest = self.per_round + self.per_sequence * (company - 1)
        return ForwardCosts(self.target.times(company), draft, 0.0, company * self.per_position, rest)

    def verify(self, rows: int, sequences: int = 1, positions: int = 0) -> float:
        """Seconds of a target forward over so many rows of so many sequences."""
        return self.target.at(rows) + self.fixed_part(sequences, positions)


class LiveCosts:
    """start: of what was measured before anything was served, and never changes. now: the same, corrected since. None
    until `begin`."""

    def __init__(self) -> None:
        self.start: ForwardCosts | None = None
        self.now: ForwardCosts | None = None

    def begin(self, measured: ForwardCosts, pinned: ForwardCosts | None = None, company: int = 1) -> None:
        """pinned: takes the place of what was measured in `start`, so that it is the same on every start. company: as
        one of how many alike a sequence is seen there."""
        self.start, self.now = (pinned or measured).times(company), measured

    def observe(
        self, rows: int, sequences: int, positions: int, seconds: float, draft_steps: Iterable[DraftStep] = ()
    ) -> None:
        """A round's target forward with its evidence and commit took `seconds`, its draft forwards as they say.

        Half of what the target's took too long, or too short, is put down to the round and half to its rows: were it
        all the rows', a cost that every round has would come to look like the slope where most rounds are. Of what it
        took too short, sequences and their context first have the share that they have of what was expected: a figure
        of theirs that other load spoiled would otherwise be taken from the rows, until they look free.
        """
        if self.now is None:
            return
        target, draft, per_round = self.now.target, self.now.draft, self.now.per_round
        company = 1.0
        if rows > 0:
            known = self.now.verify(rows, sequences, positions)
            surprise = seconds - known
            if rows <= target.largest:
                surprise = max(-known / _LARGEST_SURPRISE, min(surprise, known * (_LARGEST_SURPRISE - 1)))
                if surprise < 0:
                    company = 1 + _SMOOTHING * surprise / known
                    surprise *= 1 - (self.now.fixed_part(sequences, positions) - per_round) / known
                per_round = max(0.0, per_round + _SMOOTHING * _BESIDE * surprise)
                surprise *= 1 - _BESIDE if per_round else 1.0
            target = target.corrected(rows, 1 + surprise / target.at(rows))
        by_rows: dict[int, list[float]] = {}
        for step in draft_steps:
            by_rows.setdefault(step.rows, []).append(step.seconds)
        for fed, took in by_rows.items():  # as one, since a round's steps are much alike
            if draft is not None:
                draft = draft.corrected(fed, sum(took) / len(took) / draft.at(fed))
        self.now = replace(
            self.now,
            target=target,
            draft=draft,
            per_round=per_round,
            per_sequence=self.now.per_sequence * company,
            per_position=self.now.per_position * company,
        )
