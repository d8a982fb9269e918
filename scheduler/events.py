"""What a consumer of the engine reads: frozen events, one TokensEvent a round, one FinishedEvent at the end, and
before them a PromptEvent where the request asks what the target makes of its prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from core.provenance import FinishReason, Provenance
from core.sequence import CommittedToken, Counters, TokenLogprobs


@dataclass(frozen=True, slots=True)
class CounterSnapshot:
    """A frozen copy of a sequence's Counters; the fields mean what they mean there."""

    rounds: int
    round_tokens: int
    draft_tokens: int
    accepted_tokens: int
    loosened: Mapping[Provenance, int]
    bonus_tokens: int
    round_seconds: float
    off_seconds: float
    preemptions: int
    cached_prompt_tokens: int
    mean_accepted_length: float | None
    estimated_speedup: float | None

    @classmethod
    def of(cls, counters: Counters) -> "CounterSnapshot":
        return cls(
            rounds=counters.rounds,
            round_tokens=counters.round_tokens,
            draft_tokens=counters.draft_tokens,
            accepted_tokens=counters.accepted_tokens,
            loosened=MappingProxyType(dict(counters.loosened)),
            bonus_tokens=counters.bonus_tokens,
            round_seconds=counters.round_seconds,
            off_seconds=counters.off_seconds,
            preemptions=counters.preemptions,
            cached_prompt_tokens=counters.cached_prompt_tokens,
            mean_accepted_length=counters.mean_accepted_length,
            estimated_speedup=counters.estimated_speedup,
        )


@dataclass(frozen=True, slots=True)
class Timings:
    """In seconds since the submission, but finished_at, which is Unix time.

    queued_seconds: until a round first took the sequence; its whole life if none ever did.
    time_to_first_token: None if there was none. preempted_at: each time the sequence had to make room.
    """

    queued_seconds: float
    time_to_first_token: float | None
    total_seconds: float
    finished_at: float
    preempted_at: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptEvent:
    """Raw log-probabilities of the prompt's tokens from the second on (nothing comes before the first)."""

    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class TokensEvent:
    """The tokens one round delivered, at least one."""

    tokens: tuple[CommittedToken, ...]


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """The last event of a stream. message: for ERROR and CONSTRAINT, what a client may be told; otherwise None."""

    reason: FinishReason
    message: str | None
    counters: CounterSnapshot
    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int
    timings: Timings


Event = PromptEvent | TokensEvent | FinishedEvent
