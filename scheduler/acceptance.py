"""Acceptance: what became of a sequence's drafts so far, and what is to be expected of the next ones.

The chance that a draft is right is told apart for the first of a block and for those behind an accepted one,
which is higher: text is predictable in stretches. So the s-th draft is reached and accepted with

    reach(s) = first * later ** (s - 1)

Lookup's first draft is further told apart by how long a suffix was found again (1, 2, 3, 4 or more tokens). Old
outcomes fade. Before there are any, and mixed with the few there are, the parent speaks: for a strict sequence
the mean of all on this server, for a loose one a fixed guess, since its history alone may decide (ALGORITHMS 2).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

LONGEST_MATCH = 4
CERTAIN = 0.98  # no draft is certain
_FIRST, _LATER, _LOOSENED = 0.7, 0.8, 0.25  # before anything is known
_FIRST_BY_MATCH = (0.25, 0.45, 0.6, 0.75)


class Outcome(NamedTuple):
    """What became of one block. match: tokens of the suffix that lookup found, 0 where it was not asked. drafted: how
    many; accepted: the leading ones delivered, loosened ones included; loosened: which of them, by position in the
    block. turns: draft forwards. reach: how many the draft model expected to be accepted; 0 if it was not asked.
    window: drafts that must follow a loosened one in its block."""

    drafter: str
    match: int
    drafted: int
    accepted: int
    loosened: tuple[int, ...] = ()
    turns: int = 0
    reach: float = 0.0
    window: int = 0


@dataclass(slots=True)
class Tally:
    """hits of trials, the older ones faded."""

    hits: float = 0.0
    trials: float = 0.0

    def add(self, hits: float, trials: float, fade: float) -> None:
        self.hits = self.hits * fade + hits
        self.trials = self.trials * fade + trials

    def mean(self, parent: float, weight: float) -> float:
        """The share of hits, if `weight` trials went as the parent says."""
        return min((self.hits + parent * weight) / (self.trials + weight), CERTAIN)


def _tallies() -> list[Tally]:
    return [Tally() for _ in range(LONGEST_MATCH)]


@dataclass(slots=True)
class Acceptance:
    """weight: trials that the parent's word counts for. fade: what is left of a trial one block later. age: what is
    left of all of them after rounds without drafts."""

    parent: "Acceptance | None" = None
    weight: float = 4.0
    fade: float = 0.95
    age: float = 1.0
    model_first: Tally = field(default_factory=Tally)
    model_later: Tally = field(default_factory=Tally)
    lookup_first: list[Tally] = field(default_factory=_tallies)
    lookup_later: Tally = field(default_factory=Tally)
    deferred: Tally = field(default_factory=Tally)
    turns: Tally = field(default_factory=Tally)
    reached: Tally = field(default_factory=Tally)

    def first(self, drafter: str, match: int) -> float:
        """Of the block's first draft. match: how long a suffix lookup found."""
        if drafter == "prompt_lookup":
            step = min(match, LONGEST_MATCH) - 1
            parent = _FIRST_BY_MATCH[step] if self.parent is None else self.parent.first(drafter, match)
            return self.lookup_first[step].mean(parent, self.weight / self.age)
        parent = _FIRST if self.parent is None else self.parent.first(drafter, match)
        return self.model_first.mean(parent, self.weight / self.age)

    def later(self, drafter: str) -> float:
        """Of a draft behind an accepted one."""
        parent = _LATER if self.parent is None else self.parent.later(drafter)
        tally = self.lookup_later if drafter == "prompt_lookup" else self.model_later
        return tally.mean(parent, self.weight / self.age)

    def loosening(self) -> float:
        """Of a mismatch with its window inside the block: that it is loosened."""
        parent = _LOOSENED if self.parent is None else self.parent.loosening()
        return self.deferred.mean(parent, self.weight)

    def per_turn(self) -> float:
        """Drafts that one draft forward yields under `multilevel`; at least 1."""
        parent = 1.5 if self.parent is None else self.parent.per_turn()
        return max(1.0, (self.turns.hits + parent * self.weight) / (self.turns.trials + self.weight))

    def trust(self) -> float:
        """Drafts accepted for each that the draft model, by its own confidence, expected to be; at most 1."""
        return min((self.reached.hits + self.weight) / (self.reached.trials + self.weight), 1.0)

    def note(self, outcome: Outcome) -> None:
        """Learn from a block; one without drafts, or of tokens that a grammar forced, teaches nothing."""
        if outcome.drafted == 0 or outcome.drafter == "none":
            return
        if self.age < 1.0:
            for tally in (self.model_first, self.model_later, *self.lookup_first, self.lookup_later):
                tally.add(0.0, 0.0, self.age)
            self.age = 1.0
        lookup = outcome.drafter == "prompt_lookup"
        first = self.lookup_first[min(max(outcome.match, 1), LONGEST_MATCH) - 1] if lookup else self.model_first
        first.add(float(outcome.accepted > 0 and 0 not in outcome.loosened), 1.0, self.fade)
        rejected = outcome.accepted < outcome.drafted
        if outcome.accepted:
            behind = sum(position > 0 for position in outcome.loosened)
            trials = outcome.accepted - 1 + rejected
            later = self.lookup_later if lookup else self.model_later
            later.add(outcome.accepted - 1 - behind, trials, self.fade)
        could = rejected and outcome.accepted + outcome.window < outcome.drafted
        if outcome.loosened or could:
            self.deferred.add(len(outcome.loosened), len(outcome.loosened) + could, self.fade)
        if outcome.reach:
            self.reached.add(outcome.accepted, outcome.reach, self.fade)
        if outcome.drafter == "multilevel" and outcome.turns:
            self.turns.add(outcome.drafted, outcome.turns, self.fade)


def hopeful() -> Acceptance:
    """A mean that begins with a few good outcomes: what is tried is soon known to be bad, what is not never to be
    good."""
    first, later, lookup = Tally(3.8, 4.0), Tally(3.8, 4.0), [Tally(1.6, 2.0) for _ in range(LONGEST_MATCH)]
    return Acceptance(None, 2.0, 0.995, 1.0, first, later, lookup, Tally(1.9, 2.0))


GUESS = Acceptance()
"""Nothing but the fixed guesses; nobody notes anything in it."""
