"""Drafting: what a job remembers of its drafts, and what it wants to draft in the round being planned."""

from dataclasses import dataclass, field

from core.round_plan import ItemResult
from core.sequence import GenerationRequest
from core.verifiers.params import FlyParams, HybridParams
from scheduler.acceptance import Acceptance, Outcome

FORGET = 0.98  # of what is known, what is left after a round without drafts
FIRST_PAUSE, LONGEST_PAUSE = 8, 64  # rounds without drafts before the next probe


@dataclass(frozen=True, slots=True)
class Wish:
    """num_drafts of `drafter`, going on while the draft model finds them likely enough (RoundItem). match: tokens of
    the suffix that lookup found. tokens: that the round is expected to deliver for it. probe: it is not expected to
    pay, but to show whether drafting does again."""

    drafter: str = "none"
    num_drafts: int = 0
    min_reach: float = 0.0
    match: int = 0
    tokens: float = 1.0
    probe: bool = False


NOTHING = Wish()


@dataclass(slots=True)
class Drafting:
    """wish: None while its length is fixed. idle: verification rounds since it last drafted; pause: how many of them
    before it probes; paid: whether a probe that has yet to come was taken from the allowance.
    warm: whether the last round accepted a draft. known_at: the output
    length that a loose wish was found for. held: rounds that a loose block has been held back for its neighbours'
    sake; hold: whether it is in the round being planned."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    wish: Wish | None = None
    idle: int = 0
    pause: int = FIRST_PAUSE
    warm: bool = False
    paid: bool = False
    known_at: int = -1
    held: int = 0
    hold: bool = False

    def learn(self, wish: Wish, result: ItemResult, window: int) -> Outcome:
        """Note what became of a wish; its outcome."""
        outcome = _outcome(wish, result, window)
        self.warm = outcome.accepted > 0
        if outcome.drafted == 0:
            self.idle += 1
            self.acceptance.age *= FORGET
            return outcome
        self.idle, self.paid = 0, False
        if wish.probe:
            if outcome.accepted:  # the next one is due at once
                self.idle = self.pause = FIRST_PAUSE
            else:
                self.pause = min(2 * self.pause, LONGEST_PAUSE)
        elif outcome.accepted:
            self.pause = FIRST_PAUSE
        self.acceptance.note(outcome)
        return outcome


def is_loose(request: GenerationRequest) -> bool:
    """Whether the request's verifier may loosen, so that its answer depends on where draft blocks end."""
    return request.verifier.type not in ("off", "strict")


def window_of(request: GenerationRequest) -> int:
    """Drafts that must follow a mismatch in its block before the request's verifier forgives it."""
    verifier = request.verifier
    return verifier.window if isinstance(verifier, FlyParams | HybridParams) else 0


def _outcome(wish: Wish, result: ItemResult, window: int) -> Outcome:
    return Outcome(
        drafter=wish.drafter,
        match=wish.match,
        drafted=result.drafted,
        accepted=result.accepted,
        loosened=tuple(j for j, token in enumerate(result.tokens) if token.provenance.loosened),
        turns=result.draft_turns,
        reach=sum(result.reaches),
        window=window,
    )
