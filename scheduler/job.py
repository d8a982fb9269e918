"""Job: a sequence as the scheduler sees it, with its rank, its times and the channel its events go to."""

import time
from dataclasses import dataclass, field

from core.drafters.base import drafters_of
from core.provenance import FinishReason
from core.sequence import CommittedToken, Sequence
from scheduler.drafting import Drafting, is_loose
from scheduler.events import CounterSnapshot, FinishedEvent, PromptEvent, Timings, TokensEvent
from scheduler.stream import Channel

AGE_SECONDS = 30.0  # waiting this long outweighs one step of priority


@dataclass(slots=True, eq=False)
class Job:
    """One submitted request until it has finished.

    Times are in seconds on one monotonic clock. arrival: running number of the submission. started_at:
    when a round first took it. preempted_at: each time it had to make room. last_turn: number of its last turn to
    decode, counted over all jobs; 0 before the first. drafts_wait: it may not draft in the round being planned
    (draft_feed.py). drafting: what it wants to draft (draft_planner.py). drafters: those that may draft for it. loose:
    its verifier may loosen, so that its answer depends on where draft blocks end. rank: smaller is more urgent; decides
    admission and who is preempted.
    """

    sequence: Sequence
    arrival: int
    submitted_at: float
    channel: Channel = field(default_factory=Channel)
    started_at: float | None = None
    first_token_at: float | None = None
    preempted_at: list[float] = field(default_factory=list)
    last_turn: int = 0
    drafts_wait: bool = False
    drafting: Drafting = field(default_factory=Drafting)
    drafters: tuple[str, ...] = field(init=False)
    loose: bool = field(init=False)
    rank: tuple[float, int] = field(init=False)

    def __post_init__(self) -> None:
        request = self.sequence.request
        self.drafters = drafters_of(request)
        self.loose = is_loose(request)
        # Smaller is more urgent. "Priority minus age" orders any two jobs the same at all times, since both
        # age alike, so the age can be replaced by the time of submission and the rank never changes: what
        # was submitted 30 s earlier beats one step of priority, hence every job's turn comes.
        self.rank = (request.priority + self.submitted_at / AGE_SECONDS, self.arrival)

    @property
    def request_id(self) -> str:
        return self.sequence.request.request_id

    @property
    def decoding(self) -> bool:
        """Whether its next round is a verification round; otherwise it has prompt (or recomputed) tokens to feed."""
        sequence, known = self.sequence, len(self.sequence.tokens)
        return known - sequence.target_tokens == 1 and known > sequence.prompt_len

    def publish(self, tokens: tuple[CommittedToken, ...], now: float) -> bool:
        """Tell the consumer what a round delivered at monotonic time `now`; whether its first token was among it."""
        first = self.first_token_at is None and bool(tokens)
        prompt_done = first or (self.first_token_at is None and self.sequence.finished)
        if prompt_done:
            self.tell_scores()
        if first:
            self.first_token_at = now
        if tokens:
            self.channel.put(TokensEvent(tokens))
        return first

    def tell_scores(self) -> None:
        """Tell the consumer what the target makes of the prompt, as far as it is known, if that was asked."""
        if self.sequence.request.prompt_logprobs is not None:
            self.channel.put(PromptEvent(tuple(self.sequence.prompt_logprobs)))

    def finished_event(self, reason: FinishReason, message: str | None, now: float) -> FinishedEvent:
        """What is told of a job that ends at monotonic time `now`."""
        sequence = self.sequence
        return FinishedEvent(
            reason=reason,
            message=message,
            counters=CounterSnapshot.of(sequence.counters),
            prompt_tokens=sequence.prompt_len,
            completion_tokens=sequence.output_len,
            cached_prompt_tokens=sequence.counters.cached_prompt_tokens,
            timings=Timings(
                queued_seconds=(now if self.started_at is None else self.started_at) - self.submitted_at,
                time_to_first_token=None if self.first_token_at is None else self.first_token_at - self.submitted_at,
                total_seconds=now - self.submitted_at,
                preempted_at=tuple(at - self.submitted_at for at in self.preempted_at),
                finished_at=time.time(),
            ),
        )
