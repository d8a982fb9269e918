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
_PER_TURN = (1.1, 1.4, 1.8, 2.2, 2.5)  # drafts of a draft forward, by the suffix that lookup found, from none on
_MISTAKES = 0.7  # likewise, for each that the draft model expects: small models doubt more than they err
_FEWEST, _MOST_MISTAKES = 0.1, 3.0
_OLDEST = 1e-6  # age, at which trials count for nothing


class Outcome(NamedTuple):
    """What became of one block. match: tokens of the suffix that lookup found, 0 where it was not asked. drafted: how
    many; accepted: the leading ones delivered, loosened ones included; loosened: which of them, by position in the
    block. turns: draft forwards. doubt: of the drafts that were checked, up to and including the first mismatch, how
    many the draft model expected to be wrong; None if it was not asked. window: drafts that must follow a loosened one
    in its block."""

    drafter: str
    match: int
    drafted: int
    accepted: int
    loosened: tuple[int, ...] = ()
    turns: int = 0
    doubt: float | None = None
    window: int = 0

    @property
    def rejected(self) -> bool:
        return self.accepted < self.drafted


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


@dataclass(slots=True)
class Record:
    """Of one drafter's blocks. first: by the length of the suffix found, one alone for the draft model. age: what is
    left of all trials after rounds in which it did not draft."""

    first: list[Tally]
    later: Tally = field(default_factory=Tally)
    age: float = 1.0

    def forget(self, left: float) -> None:
        self.age = max(self.age * left, _OLDEST)

    def settle(self) -> None:
        """Turn the age into trials that are gone, so that a new one may be added."""
        if self.age < 1.0:
            for tally in (*self.first, self.later):
                tally.add(0.0, 0.0, self.age)
            self.age = 1.0


def _record(kinds: int) -> Record:
    return Record([Tally() for _ in range(kinds)])


@dataclass(slots=True)
class Acceptance:
    """weight: trials that the parent's word counts for. fade: what is left of a trial one block later. mistakes: wrong
    drafts, for each that the draft model by its own confidence expected to be."""

    parent: "Acceptance | None" = None
    weight: float = 4.0
    fade: float = 0.95
    model: Record = field(default_factory=lambda: _record(1))
    lookup: Record = field(default_factory=lambda: _record(LONGEST_MATCH))
    deferred: Tally = field(default_factory=Tally)
    turns: list[Tally] = field(default_factory=lambda: [Tally() for _ in _PER_TURN])
    mistakes: Tally = field(default_factory=Tally)

    def record(self, drafter: str) -> Record:
        return self.lookup if drafter == "prompt_lookup" else self.model

    def first(self, drafter: str, match: int) -> float:
        """Of the block's first draft. match: how long a suffix lookup found."""
        record, step = self.record(drafter), _kind(drafter, match)
        if self.parent is not None:
            parent = self.parent.first(drafter, match)
        else:
            parent = _FIRST_BY_MATCH[step] if drafter == "prompt_lookup" else _FIRST
        return record.first[step].mean(parent, self.weight / record.age)

    def later(self, drafter: str) -> float:
        """Of a draft behind an accepted one."""
        parent = _LATER if self.parent is None else self.parent.later(drafter)
        record = self.record(drafter)
        return record.later.mean(parent, self.weight / record.age)

    def loosening(self) -> float:
        """Of a mismatch with its window inside the block: that it is loosened."""
        parent = _LOOSENED if self.parent is None else self.parent.loosening()
        return self.deferred.mean(parent, self.weight)

    def per_turn(self, match: int) -> float:
        """Drafts that one draft forward yields under `multilevel`, in a block before which lookup found so long a
        suffix; at least 1."""
        kind = min(match, LONGEST_MATCH)
        parent, turns = _PER_TURN[kind] if self.parent is None else self.parent.per_turn(match), self.turns[kind]
        return max(1.0, (turns.hits + parent * self.weight) / (turns.trials + self.weight))

    def doubt(self) -> float:
        """Drafts that are wrong for each that the draft model, by its own confidence, expected to be.

        The target takes most of what a small model is in doubt about, so that one stopped by its own word alone would
        stop far too early; a few blocks show by how much."""
        parent = _MISTAKES if self.parent is None else self.parent.doubt()
        found = (self.mistakes.hits + parent) / (self.mistakes.trials + 1.0)
        return min(max(found, _FEWEST), _MOST_MISTAKES)

    def note(self, outcome: Outcome) -> None:
        """Learn from a block; one without drafts, or of tokens that a grammar forced, teaches nothing."""
        if outcome.drafted == 0 or outcome.drafter == "none":
            return
        record = self.record(outcome.drafter)
        record.settle()
        first = record.first[_kind(outcome.drafter, outcome.match)]
        first.add(float(outcome.accepted > 0 and 0 not in outcome.loosened), 1.0, self.fade)
        if outcome.accepted:
            behind = sum(position > 0 for position in outcome.loosened)
            trials = outcome.accepted - 1 + outcome.rejected
            record.later.add(outcome.accepted - 1 - behind, trials, self.fade)
        could = outcome.rejected and outcome.accepted + outcome.window < outcome.drafted
        if outcome.loosened or could:
            self.deferred.add(len(outcome.loosened), len(outcome.loosened) + could, self.fade)
        if outcome.doubt is not None:
            self.mistakes.add(float(outcome.rejected + len(outcome.loosened)), outcome.doubt, self.fade)
        if outcome.drafter == "multilevel" and outcome.turns:
            self.turns[min(outcome.match, LONGEST_MATCH)].add(outcome.drafted, outcome.turns, self.fade)


def _kind(drafter: str, match: int) -> int:
    """Which of a record's `first` a block belongs to."""
    return min(max(match, 1), LONGEST_MATCH) - 1 if drafter == "prompt_lookup" else 0


def hopeful() -> Acceptance:
    """A mean that begins with a few good outcomes: what is tried is soon known to be bad, what is not never to be
    good."""
    model = Record([Tally(3.8, 4.0)], Tally(3.8, 4.0))
    lookup = Record([Tally(1.6, 2.0) for _ in range(LONGEST_MATCH)], Tally(1.9, 2.0))
    return Acceptance(None, 2.0, 0.99, model, lookup)


GUESS = Acceptance()
"""Nothing but the fixed guesses; nobody notes anything in it."""
