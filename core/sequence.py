"""GenerationRequest (what was asked, frozen) and Sequence (its life from prompt to last token).

A Sequence is owned by the engine task between rounds and by the worker thread during one; nobody
else reads it. `commit` is its only mutation during a round: token by token, it moves the output, the
penalty counts, the stop conditions and the counters together, and cuts at the first token that ends
the answer, so that nothing behind that token is delivered, counted or kept.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from core.grammar import Grammar
from core.ngram_index import NgramIndex
from core.penalty_columns import PenaltyColumns
from core.provenance import FinishReason, Provenance, Verdict
from core.sampling_params import SamplingParams
from core.spans import SpanTracker
from core.successor_table import SuccessorTable
from core.verifiers.params import VerifierParams


class StopCondition(Protocol):
    """Ends an answer for a reason other than a token id; stateful, one object per sequence."""

    def push(self, token_id: int) -> bool:
        """Take the next delivered token; True if the answer ends with it."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate, resolved: no defaults are left to fill in.

    end_token_ids: EOS unless the request ignores it, and its own stop tokens; any of them ends the
    answer and is itself delivered as the last token. drafter: "none" or one of core.drafters.base.DRAFTERS;
    other_drafters: those that may draft in its place. num_draft_tokens: K, at most so many drafts a round.
    adaptive: as many as pay, rather than K. strict_prefix: the first output tokens that are never loosened.
    max_tokens: output tokens; 0 computes the prompt and answers nothing.
    prompt_logprobs: None for none; otherwise the prompt's own tokens are reported with so many alternatives, from
    the one behind position scored_from on.
    background: the server's own work, which runs only while nobody else is in the engine and leaves no trace in its
    totals or in the prefix cache.
    verdicts: whether each delivered token carries what verification saw in its row.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    verifier: VerifierParams
    drafter: str = "none"
    other_drafters: tuple[str, ...] = ()
    num_draft_tokens: int = 0
    adaptive: bool = False
    strict_prefix: int = 0
    end_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    prompt_logprobs: int | None = None
    scored_from: int = 0
    background: bool = False
    verdicts: bool = False


# Named tuples rather than dataclasses: one of each is made per token, and these are made three times as fast.
class TokenLogprobs(NamedTuple):
    """Raw log-softmax of the target's row: of the token itself, and of the most likely ones, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class CommittedToken(NamedTuple):
    token_id: int
    provenance: Provenance
    logprobs: TokenLogprobs | None = None
    verdict: Verdict | None = None


class SequenceState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class Counters:
    """Every figure of one sequence, kept here once; response, metrics and spans read it.

    rounds: verification rounds (prefill excluded). round_tokens: tokens they delivered.
    draft_tokens: proposed; accepted_tokens: delivered drafts, loosened ones included.
    round_seconds: wall time of its rounds. off_seconds: what `off` would have taken for the same
    tokens at the same batch sizes, from the measured cost table.
    """

    rounds: int = 0
    round_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    loosened: Counter[Provenance] = field(default_factory=Counter)
    bonus_tokens: int = 0
    round_seconds: float = 0.0
    off_seconds: float = 0.0
    preemptions: int = 0
    cached_prompt_tokens: int = 0

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens delivered per verification round (tau); None before the first."""
        return self.round_tokens / self.rounds if self.rounds else None

    @property
    def estimated_speedup(self) -> float | None:
        return self.off_seconds / self.round_seconds if self.round_seconds > 0 else None


class Sequence:
    """A request being generated.

    tokens: prompt and output. blocks: its block table, block i holding positions
    [i * block_size, (i + 1) * block_size). target_tokens / draft_tokens: the watermarks, how many
    leading tokens have valid KV in the target's / the draft's cache; always < len(tokens) for the
    target while running, since the newest token is only fed in the next round. block_hashes: chained
    hashes of its leading full blocks that are registered in the prefix cache. forced: how many tokens its grammar
    leaves no choice of next, up to a few, as of its last round; kept for adaptive requests only.
    """

    def __init__(
        self,
        request: GenerationRequest,
        stop: StopCondition | None = None,
        *,
        grammar: Grammar | None = None,
        spans: SpanTracker | None = None,
    ) -> None:
        self.request = request
        self.stop = stop
        self.grammar = grammar  # what the answer must be; None leaves it free
        self.forced = 0
        self.spans = spans  # where it must not be loosened
        self.state = SequenceState.WAITING
        self.finish_reason: FinishReason | None = None
        self.failure: str | None = None  # why it ended as CONSTRAINT
        self.tokens: list[int] = list(request.prompt)
        self.prompt_len = len(request.prompt)
        self.highest_token = max(request.prompt, default=0)  # id; which models' embeddings can take the text
        self.blocks: list[int] = []
        self.block_hashes: list[bytes] = []
        self.target_tokens = 0
        self.draft_tokens = 0
        self.counters = Counters()
        self.prompt_logprobs: list[TokenLogprobs] = []  # of the prompt's tokens from the second on, as far as known
        self.ngrams: NgramIndex | None = None  # built by the first lookup, grows with verified tokens
        self.successors: SuccessorTable | None = None  # likewise, for token recycling; learns from checked rows
        # Penalties need counts of what is out and the set of prompt tokens; kept only where asked for.
        self.output_counts: Counter[int] = Counter()
        repeats_count = request.sampling.repetition_penalty != 1.0
        self.columns = PenaltyColumns(frozenset(request.prompt) if repeats_count else frozenset())

    @property
    def prompt_rows_owed(self) -> range:
        """Positions whose rows are still to be computed, cached KV or not, since the request asks what they tell
        of the prompt (prompt_logprobs.py). They begin at or behind target_tokens."""
        if self.request.prompt_logprobs is None:
            return range(0)
        return range(self.request.scored_from + len(self.prompt_logprobs), self.prompt_len - 1)

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    @property
    def pending(self) -> int:
        """Known tokens whose KV the target still lacks; 1 while decoding, more during prefill."""
        return len(self.tokens) - self.target_tokens

    @property
    def finished(self) -> bool:
        return self.state is SequenceState.FINISHED

    def commit(self, tokens: Iterable[CommittedToken]) -> list[CommittedToken]:
        """Append verified tokens until one ends the answer; return those delivered.

        A token that the grammar forbids was chosen from a row that left no choice; it is not delivered, and
        the answer ends as CONSTRAINT.
        """
        delivered: list[CommittedToken] = []
        grammar, spans, stop, request = self.grammar, self.spans, self.stop, self.request
        length = self.output_len
        for token in tokens:
            token_id = token.token_id
            if grammar is not None and not grammar.push(token_id):
                self.failure = grammar.failure
                self.finish(FinishReason.CONSTRAINT)
                break
            delivered.append(token)
            self._count(token.provenance)
            length += 1
            if spans is not None:
                spans.push(token_id)
            # The stop condition sees every token, also an early one that min_tokens keeps from ending.
            ended = (stop is not None and stop.push(token_id)) or token_id in request.end_token_ids
            if (ended and length >= request.sampling.min_tokens) or (grammar is not None and grammar.finished):
                self.finish(FinishReason.STOP)
                break
            if length >= request.max_tokens:
                self.finish(FinishReason.LENGTH)
                break
        token_ids = [token.token_id for token in delivered]
        self.tokens.extend(token_ids)
        self.highest_token = max(self.highest_token, max(token_ids, default=0))
        if request.sampling.has_penalties:
            self.output_counts.update(token_ids)
        return delivered

    def _count(self, provenance: Provenance) -> None:
        counters = self.counters
        if provenance is Provenance.NATIVE:
            counters.accepted_tokens += 1
        elif provenance is Provenance.BONUS:
            counters.bonus_tokens += 1
        elif provenance.loosened:
            counters.accepted_tokens += 1
            counters.loosened[provenance] += 1

    def finish(self, reason: FinishReason) -> None:
        if not self.finished:
            self.state = SequenceState.FINISHED
            self.finish_reason = reason
