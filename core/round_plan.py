"""RoundPlan and RoundResult: what a round is to do, and what it gave."""

from dataclasses import dataclass
from typing import NamedTuple

from core.drafters.base import DraftStep
from core.sequence import CommittedToken, Sequence


class RoundItem(NamedTuple):
    """A sequence's share of a round. Its block table must hold target_tokens + num_tokens + num_drafts positions.

    num_tokens: known tokens to feed, 1 .. sequence.pending; fewer than pending is a prefill chunk
    with more to come, which yields no token, nor does the last one if none is asked for. num_drafts: at
    most so many drafts, those included that a grammar forces. drafter: who proposes the others this time; None for
    the request's own, "none" for nobody. min_reach, min_guessed_reach, 0 to 1: the draft model goes on only while what
    it drafted is likely enough to be accepted, in which doubt and forgiving have a say (`DraftJob`); 0 never asks it.
    """

    sequence: Sequence
    num_tokens: int
    num_drafts: int = 0
    drafter: str | None = None
    min_reach: float = 0.0
    min_guessed_reach: float | None = None
    doubt: float = 1.0
    forgiving: float = 0.0

    @property
    def proposer(self) -> str:
        return self.drafter or self.sequence.request.drafter

    @property
    def yields(self) -> bool:
        return self.num_tokens == self.sequence.pending and self.sequence.request.max_tokens > 0


@dataclass(frozen=True, slots=True)
class CatchUp:
    """An order to feed the draft model a sequence's verified tokens, up to the first `upto` of them.

    At most those that the target will have computed when the round ends, so the blocks are there.
    """

    sequence: Sequence
    upto: int


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What a round is to do. Its catch-ups may be all: then the target does not run."""

    items: tuple[RoundItem, ...]
    catch_up: tuple[CatchUp, ...] = ()


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What a round gave one sequence: the delivered tokens, how many drafts were checked for them and how many of
    those were delivered.

    reaches: the draft model's estimate, for each draft, that it is reached and accepted; empty where it was not
    asked. draft_turns: draft forwards that the sequence took part in. corrected: the draft that was rejected and the
    target's token that was delivered in its place; under strict, the block's first mismatch. verified: it was one of
    the sequence's verification rounds (Counters.rounds). memory_lookups, memory_hits: as in csd.memory_use.
    """

    sequence: Sequence
    tokens: tuple[CommittedToken, ...]
    drafted: int
    accepted: int
    reaches: tuple[float, ...] = ()
    draft_turns: int = 0
    corrected: tuple[int, int] | None = None
    verified: bool = False
    memory_lookups: int = 0
    memory_hits: int = 0


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The round's items in plan order, and its wall time in seconds by phase: on a device that runs behind the host,
    forward is what the target's forward took there, evidence the rest until its figures had arrived.

    decoding: how many of them decoded (delivered a token that was not their first). draft_steps: the draft model's
    forwards that drafted, in order; the first feeds whatever it lacked. drafting: whether anybody was to draft, or the
    draft model caught up with a text.
    """

    items: tuple[ItemResult, ...]
    draft_seconds: float
    forward_seconds: float
    evidence_seconds: float
    commit_seconds: float
    decoding: int
    draft_steps: tuple[DraftStep, ...] = ()
    drafting: bool = False

    @property
    def host_seconds(self) -> float:
        return self.evidence_seconds + self.commit_seconds

    @property
    def seconds(self) -> float:
        return self.draft_seconds + self.forward_seconds + self.host_seconds
