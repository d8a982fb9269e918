"""Drafting: what a job remembers of its drafts, and what it wants to draft in the round being planned."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from core.drafters.base import drafters_of
from core.provenance import Provenance
from core.round_plan import ItemResult
from core.sequence import GenerationRequest
from core.verifiers.params import FlyParams, HybridParams, VerifierParams
from scheduler.acceptance import Acceptance, Outcome
from scheduler.draft_option import Choice

FORGET = 0.98  # of what is known of a drafter, what is left after a round in which it did not draft
MOST_HITS = 4  # probes in a row, each following at once on one that was right
FIRST_PAUSE, LONGEST_PAUSE = 8, 64  # rounds without a drafter's drafts before its next probe


class Wish(NamedTuple):
    """num_drafts of `drafter`, going on while they are likely enough (RoundItem: min_reach, min_guessed_reach, doubt,
    forgiving). match: tokens of the suffix that lookup found, or UNKNOWN where it was not asked. tokens: that the round
    is expected to deliver for it. probe: it is not expected to pay, but to show whether drafting does again.
    forgivable: whether its mismatches may be loosened."""

    drafter: str = "none"
    num_drafts: int = 0
    min_reach: float = 0.0
    match: int = 0
    tokens: float = 1.0
    probe: bool = False
    min_guessed_reach: float | None = None
    doubt: float = 1.0
    forgiving: float = 0.0
    forgivable: bool = True


NOTHING = Wish()
UNKNOWN = -1


class Standing(NamedTuple):
    """What was chosen for a strict sequence when it was weighed last, and what that was expected to deliver."""

    choice: Choice
    tokens: float

    @property
    def by_model(self) -> bool:
        """Whether the draft model drafts, which can go on with it whatever lookup finds meanwhile."""
        return self.choice.option is not None and self.choice.option.per_turn > 0


@dataclass(slots=True)
class Pause:
    """One drafter's. idle: verification rounds since it last drafted; length: how many of them before it is probed;
    paid: whether a probe that has yet to come was taken from the allowance. hits: probes in a row that were right."""

    idle: int = 0
    length: int = FIRST_PAUSE
    paid: bool = False
    hits: int = 0

    @property
    def promising(self) -> bool:
        """Whether a first probe or few were right, so that the next is worth more than another drafter's first."""
        return 0 < self.hits < MOST_HITS

    @property
    def overdue(self) -> int:
        """Rounds beyond the pause; below 0 while it lasts."""
        return self.idle - self.length


@dataclass(slots=True)
class Drafting:
    """wish: None while its length is fixed. pauses: by drafter. most: of a fixed length, what this round has time for;
    None for all. warm: whether the last round accepted a draft. known_at: the output length that a loose wish was found
    for. weighed_at: the round of its last turn to be weighed, 0 before the first; standing: what was found for a strict
    one then, if anything. held: rounds that a loose block has been held back for its neighbours' sake; hold: whether it
    is in the round being planned."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    wish: Wish | None = None
    pauses: dict[str, Pause] = field(default_factory=dict)
    most: int | None = None
    warm: bool = False
    known_at: int = -1
    weighed_at: int = 0
    standing: Standing | None = None
    held: int = 0
    hold: bool = False

    def pause(self, drafter: str) -> Pause:
        found = self.pauses.get(drafter)
        if found is None:
            found = self.pauses[drafter] = Pause()
        return found

    def wish_for(
        self, choice: Choice, match: int, tokens: float, may_grow: bool = False, forgiving: float = 0.0
    ) -> Wish:
        """forgiving: the chance that a wrong draft of a block that may end early is accepted. may_grow: a block that
        the draft model stays sure of may become twice as long as is expected to pay, unless its last drafts were all
        wrong. A loose one may not: its neighbours could neither cut it nor count on so much.

        Nothing but the sequence's own history and the choice is asked here, so a loose block ends where it does
        whatever the load: what the draft model says depends on the text alone.
        """
        option, num_drafts, min_reach, min_guessed_reach = choice
        assert option is not None
        if not option.per_turn:
            return Wish(option.drafter, num_drafts, min_reach, match, tokens, forgivable=option.loosening > 0.0)
        most = min(2 * num_drafts, option.cap) if may_grow and self.warm else num_drafts
        doubt = self.acceptance.doubt()
        return Wish(
            option.drafter,
            most,
            min_reach,
            match,
            tokens,
            min_guessed_reach=min_guessed_reach,
            doubt=doubt,
            forgiving=forgiving,
            forgivable=option.loosening > 0.0,
        )

    def learn(self, wish: Wish, asked: int, result: ItemResult) -> Outcome:
        """Note what became of a wish, of which `asked` drafts found room in the round; its outcome."""
        request = result.sequence.request
        outcome = _outcome(wish, asked, result, window_of(request))
        self.warm = outcome.accepted > 0
        used = outcome.drafter if outcome.drafted else "none"
        for drafter in drafters_of(request):
            if drafter == used:
                self._end(self.pause(drafter), wish.probe, outcome.accepted > 0)
            else:
                self.pause(drafter).idle += 1
                self.acceptance.forget(drafter, FORGET)
        self.acceptance.note(outcome)
        return outcome

    def _end(self, pause: Pause, probe: bool, accepted: bool) -> None:
        pause.idle, pause.paid = 0, False
        if accepted:
            pause.length = FIRST_PAUSE
            pause.hits = min(pause.hits + 1, MOST_HITS) if probe else 0
            pause.idle = FIRST_PAUSE if pause.promising else 0  # the next one is due at once
        else:
            pause.hits = 0
            if probe:
                pause.length = min(2 * pause.length, LONGEST_PAUSE)


_WINDOWED = FlyParams, HybridParams
_NEVER = math.log(3)  # nats: FLy's gate at it or above never opens
_OPEN_GATE, _FULL_GATE, _KNOWN_PAIR, _LENIENT = 1.15, 0.02, 0.06, 0.25


def loosens(verifier: VerifierParams) -> bool:
    """Whether it may deliver drafts that are not the target's own choice."""
    return verifier.type not in ("off", "strict")


def is_loose(request: GenerationRequest) -> bool:
    """Whether the request's verifier may loosen, so that its answer depends on where draft blocks end."""
    return loosens(request.verifier)


def window_of(request: GenerationRequest) -> int:
    """Drafts that must follow a mismatch in its block before the request's verifier forgives it."""
    verifier = request.verifier
    return verifier.window if isinstance(verifier, _WINDOWED) else 0


def usual_loosening(verifier: VerifierParams, later: float) -> float:
    """The chance that a mismatch with its window in the block is forgiven, before a sequence has shown it: a fixed
    guess, since nothing but its own settings and history may decide. later: that a draft behind it is right.

    FLy's gate opens the less the higher it is, up to ln 3 nats where it never does, and then its window must hold. The
    proportions are those of the demo pair's answers to GSM8K and HumanEval.
    """
    # By name: asked for every option in every round, where pydantic's isinstance would take a microsecond.
    if verifier.type == "lossy" or verifier.type == "typical":
        return _LENIENT
    fly = 0.0
    if verifier.type == "fly" or verifier.type == "hybrid":
        gate = _OPEN_GATE * (1 - verifier.entropy_threshold / _NEVER) if verifier.entropy == "top3" else _FULL_GATE
        fly = min(max(gate, 0.0), 1.0) * later**verifier.window
    memory = _KNOWN_PAIR if verifier.type == "csd" or verifier.type == "hybrid" else 0.0
    return fly + memory - fly * memory


def _outcome(wish: Wish, asked: int, result: ItemResult, window: int) -> Outcome:
    """A drafter that was asked and had nothing to give, since its grammar forbids it, was wrong once. Where the
    answer ended within the block, what lies behind the end was never judged."""
    cut = result.accepted > 0 and len(result.tokens) == result.accepted
    drafted = result.accepted if cut else result.drafted
    return Outcome(
        drafter=wish.drafter,
        match=wish.match,
        drafted=1 if asked and not drafted else drafted,
        accepted=result.accepted,
        loosened=_loosened(result) if result.accepted and is_loose(result.sequence.request) else (),
        turns=0 if cut else result.draft_turns,
        doubt=_doubt(result.reaches[: min(result.accepted + 1, drafted)]) if result.reaches else None,
        window=window,
        forgivable=wish.forgivable,
    )


def _loosened(result: ItemResult) -> tuple[int, ...]:
    native = Provenance.NATIVE  # most are
    return tuple(
        [j for j, token in enumerate(result.tokens) if token.provenance is not native and token.provenance.loosened]
    )


def _doubt(reaches: tuple[float, ...]) -> float:
    """Mismatches that the draft model expected among drafts of these reaches."""
    doubt, before = 0.0, 1.0
    for reach in reaches:
        doubt += 1 - reach / before if before > 0 else 1.0
        before = reach
    return doubt
