"""Acceptance: what became of a sequence's drafts so far, and what is to be expected of the next ones.

The chance that a draft is right is told apart for the first of a block and for those behind an accepted one,
which is higher: text is predictable in stretches. So the s-th draft is reached and accepted with

    reach(s) = first * later ** (s - 1)

Lookup's first draft is further told apart by how long a suffix was found again (1, 2, 3, 4 or more tokens), so is the
datastore's, and token recycling's by how sure the target was of it when it last looked (1 to 4). Old
outcomes fade. Before there are any, and mixed with the few there are, the parent speaks: for a strict sequence
the mean of all on this server, for a loose one a fixed guess, since its history alone may decide (ALGORITHMS 2).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from core.drafters.base import FREE_DRAFTERS

LONGEST_MATCH = 4
CERTAIN = 0.98  # no draft is certain
_FIRST, _LATER = 0.7, 0.8  # before anything is known
_FIRST_BY_MATCH = (0.25, 0.45, 0.6, 0.75)
_PER_TURN = (1.1, 1.4, 1.8, 2.2, 2.5)  # drafts of a draft forward, by the suffix that lookup found, from none on
_MISTAKES = 0.7  # likewise, for each that the draft model expects: small models doubt more than they err
_FEWEST, _MOST_MISTAKES = 0.1, 3.0
_OLDEST = 1e-6  # age, at which trials count for nothing


class Outcome(NamedTuple):
    """What became of one block. match: tokens of the suffix that lookup found, or what stands for them; 0 where there
    is no such thing. drafted: how
    many; accepted: the leading ones delivered, loosened ones included; loosened: which of them, by position in the
    block. turns: draft forwards. doubt: of the drafts that were checked, up to and including the first mismatch, how
    many the draft model expected to be wrong; None if it was not asked. window: drafts that must follow a loosened one
    in its block. forgivable: whether its mismatches could be loosened at all."""

    drafter: str
    match: int
    drafted: int
    accepted: int
    loosened: tuple[int, ...] = ()
    turns: int = 0
    doubt: float | None = None
    window: int = 0
    forgivable: bool = True

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
        share = (self.hits + parent * weight) / (self.trials + weight)
        return share if share < CERTAIN else CERTAIN


@dataclass(slots=True)
class Record:
    """Of one drafter's blocks. first: by the length of the suffix found, one alone for the draft model. age: what is
    left of all trials after rounds in which it did not draft."""

    first: list[Tally]
    later: Tally = field(default_factory=Tally)
    age: float = 1.0

    def forget(self, left: float) -> None:
        age = self.age * left
        self.age = age if age > _OLDEST else _OLDEST

    def settle(self) -> None:
        """Turn the age into trials that are gone, so that a new one may be added."""
        if self.age < 1.0:
            for tally in (*self.first, self.later):
                tally.add(0.0, 0.0, self.age)
            self.age = 1.0


def _record(kinds: int) -> Record:
    return Record([Tally() for _ in range(kinds)])


class Chances(NamedTuple):
    """Of one drafter's drafts. first: as in Record; later: behind an accepted one."""

    first: tuple[float, ...]
    later: float


class Word(NamedTuple):
    """All that an Acceptance says, side by side: its children ask for it in every round. free: of the drafters that
    cost no forward. per_turn: by the suffix that lookup found, from none on."""

    model: Chances
    free: dict[str, Chances]
    per_turn: tuple[float, ...]
    doubt: float


_FREE = dict.fromkeys(FREE_DRAFTERS, Chances(_FIRST_BY_MATCH, _LATER))
_FREE["token_recycling"] = Chances((0.2, 0.25, 0.35, 0.55), 0.5)  # goes by one token, which says less than a suffix
_GUESSES = Word(Chances((_FIRST,), _LATER), _FREE, _PER_TURN, _MISTAKES)


@dataclass(slots=True)
class Acceptance:
    """weight: trials that the parent's word counts for. fade: what is left of a trial one block later. mistakes: wrong
    drafts, for each that the draft model by its own confidence expected to be."""

    parent: "Acceptance | None" = None
    weight: float = 4.0
    fade: float = 0.95
    model: Record = field(default_factory=lambda: _record(1))
    free: dict[str, Record] = field(default_factory=lambda: {name: _record(LONGEST_MATCH) for name in FREE_DRAFTERS})
    deferred: Tally = field(default_factory=Tally)
    turns: list[Tally] = field(default_factory=lambda: [Tally() for _ in _PER_TURN])
    mistakes: Tally = field(default_factory=Tally)
    _word: Word | None = field(default=None, init=False, repr=False, compare=False)  # until it learns something

    def record(self, drafter: str) -> Record:
        return self.free.get(drafter, self.model)

    def word(self) -> Word:
        """Everything below, for those whose parent it is."""
        if self._word is None or self.parent is not None:
            model = Chances((self.first("model", 0),), self.later("model"))
            free = {
                drafter: Chances(
                    tuple(self.first(drafter, match) for match in range(1, LONGEST_MATCH + 1)), self.later(drafter)
                )
                for drafter in FREE_DRAFTERS
            }
            per_turn = tuple(self.per_turn(match) for match in range(len(_PER_TURN)))
            self._word = Word(model, free, per_turn, self.doubt())
        return self._word

    @property
    def _parents(self) -> Word:
        return _GUESSES if self.parent is None else self.parent.word()

    def chances(self, drafter: str, match: int) -> tuple[float, float]:
        """Of the block's first draft, and of one behind an accepted one. match: as in Outcome."""
        said, record = self._parents, self.record(drafter)
        parents = said.free.get(drafter, said.model)
        kind, weight = _kind(drafter, match), self.weight / record.age
        return record.first[kind].mean(parents.first[kind], weight), record.later.mean(parents.later, weight)

    def first(self, drafter: str, match: int) -> float:
        return self.chances(drafter, match)[0]

    def later(self, drafter: str) -> float:
        return self.chances(drafter, 0)[1]

    def loosening(self, usual: float) -> float:
        """Of a mismatch with its window inside the block: that it is loosened. usual: the guess before any was."""
        return self.deferred.mean(usual, self.weight)

    def per_turn(self, match: int) -> float:
        """Drafts that one draft forward yields under `multilevel`, in a block before which lookup found so long a
        suffix; at least 1."""
        kind = min(match, LONGEST_MATCH)
        turns = self.turns[kind]
        found = (turns.hits + self._parents.per_turn[kind] * self.weight) / (turns.trials + self.weight)
        return found if found > 1.0 else 1.0

    def doubt(self) -> float:
        """Drafts that are wrong for each that the draft model, by its own confidence, expected to be.

        The target takes most of what a small model is in doubt about, so that one stopped by its own word alone would
        stop far too early; a few blocks show by how much."""
        found = (self.mistakes.hits + self._parents.doubt) / (self.mistakes.trials + 1.0)
        return min(max(found, _FEWEST), _MOST_MISTAKES)

    def forget(self, drafter: str, left: float) -> None:
        """A round went by in which it did not draft."""
        self.record(drafter).forget(left)
        self._word = None

    def note(self, outcome: Outcome) -> None:
        """Learn from a block; one without drafts, or of tokens that a grammar forced, teaches nothing."""
        if outcome.drafted == 0 or outcome.drafter == "none":
            return
        self._word = None
        record = self.record(outcome.drafter)
        record.settle()
        first = record.first[_kind(outcome.drafter, outcome.match)]
        first.add(float(outcome.accepted > 0 and 0 not in outcome.loosened), 1.0, self.fade)
        if outcome.accepted:
            behind = len(outcome.loosened) - (0 in outcome.loosened)
            trials = outcome.accepted - 1 + outcome.rejected
            record.later.add(outcome.accepted - 1 - behind, trials, self.fade)
        could = outcome.forgivable and outcome.rejected and outcome.accepted + outcome.window < outcome.drafted
        if outcome.loosened or could:
            self.deferred.add(len(outcome.loosened), len(outcome.loosened) + could, self.fade)
        if outcome.doubt is not None:
            self.mistakes.add(float(outcome.rejected + len(outcome.loosened)), outcome.doubt, self.fade)
        if outcome.drafter == "multilevel" and outcome.turns and outcome.match >= 0:
            self.turns[min(outcome.match, LONGEST_MATCH)].add(outcome.drafted, outcome.turns, self.fade)


def _kind(drafter: str, match: int) -> int:
    """Which of a record's `first` a block belongs to."""
    return min(max(match, 1), LONGEST_MATCH) - 1 if drafter in FREE_DRAFTERS else 0


def hopeful() -> Acceptance:
    """A mean that begins with a few good outcomes: what is tried is soon known to be bad, what is not never to be
    good."""
    model = Record([Tally(3.8, 4.0)], Tally(3.8, 4.0))
    free = {name: Record([Tally(1.6, 2.0) for _ in range(LONGEST_MATCH)], Tally(1.9, 2.0)) for name in FREE_DRAFTERS}
    return Acceptance(None, 2.0, 0.99, model, free)


GUESS = Acceptance()
"""Nothing but the fixed guesses; nobody notes anything in it."""
