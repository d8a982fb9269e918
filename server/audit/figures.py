"""Figures: what the audit found, by verifier and parameters, and the guard that acts on it.

A set is a verifier with its parameters: what an extreme one does says nothing about the default. The first MOST_SETS
that are met have figures of their own, the server's defaults among them from the start; the others share one set a
verifier, so that clients cannot fill the memory. The guard judges and demotes each set alone: one window of judged
tokens after the other, each by itself, and only where the whole interval of its share lies below the floor. To compare
the bare share with it, again after every answer, would sooner or later find any verifier wanting.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from core.verifiers.params import VerifierParams
from server.audit.replay import Findings
from server.audit.tally import Tally

MOST_SETS = 32
GUARDED_TOKENS = 4  # of one answer, in the guard's window: no few answers are to fill it


@dataclass(frozen=True, slots=True)
class Demotion:
    """at: Unix time. share: re-converged ones of the window's `tokens` judged tokens; interval: its, which ends below
    the floor."""

    at: float
    share: float
    interval: tuple[float, float]
    tokens: int


@dataclass(slots=True)
class SetFigures:
    """Of one set. loosened: tokens of the replayed answers; all: those judged. window: those that the guard has yet to
    judge."""

    verifier: str
    params: VerifierParams | None
    loosened: int = 0
    all: Tally = field(default_factory=Tally)
    window: Tally = field(default_factory=Tally)
    delivered_logprobs: float = 0.0
    own_logprobs: float = 0.0
    gap_squares: float = 0.0
    demotion: Demotion | None = None

    def add(self, found: Findings) -> None:
        self.loosened += found.loosened
        self.all.add(found.reconverged)
        self.window.add(_spread(found.reconverged, GUARDED_TOKENS))
        self.delivered_logprobs += found.delivered_logprob
        self.own_logprobs += found.own_logprob
        self.gap_squares += found.gap**2

    @property
    def answers(self) -> int:
        """Replayed ones."""
        return self.all.answers

    @property
    def mean_gap(self) -> float:
        """Over the answers; ZeroDivisionError before the first."""
        return (self.own_logprobs - self.delivered_logprobs) / self.answers

    @property
    def gap_error(self) -> float | None:
        """Standard error of the mean gap; None below two answers."""
        if self.answers < 2:
            return None
        variance = (self.gap_squares - self.answers * self.mean_gap**2) / (self.answers - 1)
        return math.sqrt(max(0.0, variance) / self.answers)


@dataclass(slots=True)
class Figures:
    """floor: least share of a set; None for no guard. window: judged tokens that the guard looks at together.
    defaults: sets that have figures of their own whatever else is met."""

    floor: float | None
    window: int
    defaults: Iterable[VerifierParams] = ()
    since: float = field(default_factory=time.time)
    _own: dict[VerifierParams, SetFigures] = field(default_factory=dict)
    _shared: dict[str, SetFigures] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.defaults = tuple(self.defaults)
        for params in self.defaults:
            self._own[params] = SetFigures(params.type, params)

    def add(self, params: VerifierParams, found: Findings) -> Demotion | None:
        """Take in one answer's findings; the set's demotion, if they led to it."""
        figures = self._of(params)
        figures.add(found)
        if self.floor is None or figures.demotion is not None or figures.window.judged < self.window:
            return None
        window, figures.window = figures.window, Tally()
        interval = window.interval()
        if interval[1] < self.floor:
            figures.demotion = Demotion(time.time(), window.share, interval, window.judged)
        return figures.demotion

    def demotion(self, params: VerifierParams) -> Demotion | None:
        """Of the set that these parameters belong to. Any thread may ask."""
        figures = self._own.get(params) or self._shared.get(params.type)
        return None if figures is None else figures.demotion

    def demoted_verifiers(self) -> set[str]:
        """Those with a demoted set."""
        return {figures.verifier for figures in self.sets() if figures.demotion is not None}

    def sets(self) -> list[SetFigures]:
        """Those that something is known of."""
        return [figures for figures in (*self._own.values(), *self._shared.values()) if figures.answers]

    def cleared(self) -> "Figures":
        """As at the start: nothing known, nobody demoted."""
        return Figures(self.floor, self.window, self.defaults)

    def _of(self, params: VerifierParams) -> SetFigures:
        if params in self._own:
            return self._own[params]
        if len(self._own) < MOST_SETS:
            return self._own.setdefault(params, SetFigures(params.type, params))
        return self._shared.setdefault(params.type, SetFigures(params.type, None))


def _spread(verdicts: tuple[bool, ...], most: int) -> tuple[bool, ...]:
    """At most so many of them, at even distances."""
    count = min(most, len(verdicts))
    return tuple(verdicts[i * len(verdicts) // count] for i in range(count))
