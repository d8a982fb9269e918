"""Figures: what the audit found, by verifier and parameters, and the guard that acts on it.

A set is a verifier with its parameters: what an extreme one does says nothing about the default. The first MOST_SETS
that are met have figures of their own, the server's defaults among them from the start; the others share one set a
verifier, so that clients cannot fill the memory. The guard judges and demotes each set alone.
"""

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from core.verifiers.params import VerifierParams
from server.audit.replay import Findings

MOST_SETS = 32
_Z = 1.959964  # two-sided 95 %


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927). ValueError without trials."""
    if trials < 1:
        raise ValueError("an interval needs at least one trial")
    share, square = successes / trials, _Z * _Z
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    reach = _Z / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    return max(0.0, middle - reach), min(1.0, middle + reach)


@dataclass(frozen=True, slots=True)
class Demotion:
    """at: Unix time. share: re-converged ones of the set's last `tokens` judged tokens, which is below the floor."""

    at: float
    share: float
    tokens: int


@dataclass(slots=True)
class SetFigures:
    """Of one set. answers: replayed ones. loosened: their loosened tokens; judged: those replayed; reconverged: those
    after which the target came back. recent: whether it did for the last judged ones."""

    verifier: str
    params: VerifierParams | None
    recent: deque[bool]
    answers: int = 0
    loosened: int = 0
    judged: int = 0
    reconverged: int = 0
    delivered_logprobs: float = 0.0
    own_logprobs: float = 0.0
    gap_squares: float = 0.0
    demotion: Demotion | None = None

    def add(self, found: Findings) -> None:
        self.answers += 1
        self.loosened += found.loosened
        self.judged += len(found.reconverged)
        self.reconverged += sum(found.reconverged)
        self.recent.extend(found.reconverged)
        self.delivered_logprobs += found.delivered_logprob
        self.own_logprobs += found.own_logprob
        self.gap_squares += found.gap**2

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
    """floor: least recent share of a set; None for no guard. window: tokens that are recent, and how many of them the
    guard needs. defaults: sets that have figures of their own whatever else is met."""

    floor: float | None
    window: int
    defaults: Iterable[VerifierParams] = ()
    since: float = field(default_factory=time.time)
    _own: dict[VerifierParams, SetFigures] = field(default_factory=dict)
    _shared: dict[str, SetFigures] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.defaults = tuple(self.defaults)
        for params in self.defaults:
            self._own[params] = self._new(params.type, params)

    def add(self, params: VerifierParams, found: Findings) -> Demotion | None:
        """Take in one answer's findings; the set's demotion, if they led to it."""
        figures = self._of(params)
        figures.add(found)
        recent = len(figures.recent)
        if self.floor is None or figures.demotion is not None or recent < self.window:
            return None
        share = sum(figures.recent) / recent
        if share >= self.floor:
            return None
        figures.demotion = Demotion(time.time(), share, recent)
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
            return self._own.setdefault(params, self._new(params.type, params))
        return self._shared.setdefault(params.type, self._new(params.type, None))

    def _new(self, verifier: str, params: VerifierParams | None) -> SetFigures:
        return SetFigures(verifier, params, deque(maxlen=self.window))
