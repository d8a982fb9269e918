"""One speculative round: draft -> one target forward -> evidence -> verify -> commit.

The page to read first. A round takes any mix of sequences: prompts being prefilled in chunks, plain
decoding, and draft blocks of any length under any verifier; the target runs once for all of them.

Worked example, K = 3. The sequence knows tokens t0 .. t9 and the target has KV for 9 of them.

    fed rows       t9   d0   d1   d2
    row's choice   c0   c1   c2   c3      what the target takes after t9, after d0, ...
    d0 = c0, d1 = c1, d2 != c2 and the verifier does not loosen it
    delivered      d0   d1   c2           accepted length n = 2, then the correction
    watermark      9 + 1 + 2 = 12         t0 .. t9 d0 d1 are valid; d2's KV is dead, c2 is fed next round

Rolling back is nothing but that watermark: dead KV is simply overwritten by the next round.
"""

from dataclasses import dataclass
from time import perf_counter

from core.device_clock import DeviceInterval
from core.drafters.base import DraftJob
from core.drafters.model import draft_with_model, drafts_with_model, feed_known, model_draft_limit
from core.drafters.prompt_lookup import draft_by_lookup, index_text
from core.evidence import Evidence, RowLogprobs, VerifyBlock, gather_evidence
from core.layout import RaggedLayout, Segment
from core.noise import NoiseCache
from core.prompt_logprobs import rows_to_score, score_prompt
from core.provenance import FinishReason
from core.runtime import Runtime
from core.sequence import CommittedToken, Sequence, TokenLogprobs
from core.verifiers.registry import accepted_length, loosen, resolve_block


@dataclass(frozen=True, slots=True)
class RoundItem:
    """A sequence's share of a round. Its block table must hold target_tokens + num_tokens + num_drafts positions.

    num_tokens: known tokens to feed, 1 .. sequence.pending; fewer than pending is a prefill chunk
    with more to come, which yields no token, nor does the last one if none is asked for. num_drafts: at
    most so many drafts.
    """

    sequence: Sequence
    num_tokens: int
    num_drafts: int = 0

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
    """What a round gave one sequence: the delivered tokens and how many drafts were checked for them."""

    sequence: Sequence
    tokens: tuple[CommittedToken, ...]
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The round's items in plan order, and its wall time in seconds by phase: on a device that runs behind the host,
    forward is what the target's forward took there, evidence the rest until its figures had arrived.

    decoding: how many of them decoded (delivered a token that was not their first).
    """

    items: tuple[ItemResult, ...]
    draft_seconds: float
    forward_seconds: float
    evidence_seconds: float
    commit_seconds: float
    decoding: int

    @property
    def host_seconds(self) -> float:
        return self.evidence_seconds + self.commit_seconds

    @property
    def seconds(self) -> float:
        return self.draft_seconds + self.forward_seconds + self.host_seconds


def run_round(plan: RoundPlan, runtime: Runtime) -> RoundResult:
    """Run one round; the only caller of the target's forward. Mutates the plan's sequences and the pool."""
    began = perf_counter()
    noise = NoiseCache()
    jobs = _draft(plan, runtime, noise)
    if not plan.items and runtime.draft is not None:
        runtime.draft.wait()  # a device may still be feeding; its time is this round's
    drafted = perf_counter()
    if not plan.items:
        return RoundResult((), drafted - began, 0.0, 0.0, 0.0, decoding=0)
    forward = DeviceInterval(runtime.target.device)
    layout = _lay_out(plan, jobs, runtime.pool.block_size)
    logits = runtime.target.forward(layout)
    forward.end()
    blocks = [
        VerifyBlock(
            item.sequence,
            end_row - 1 - len(job.drafts),
            job.drafts,
            runtime.memory.snapshot(item.sequence.request.drafter),
        )
        for item, job, end_row in zip(plan.items, jobs, layout.logit_starts[1:], strict=True)
        if item.yields
    ]
    evidence = iter(gather_evidence(logits, blocks, runtime.control_ids, noise))
    for item, first_row in zip(plan.items, layout.logit_starts[:-1], strict=True):
        if scored := rows_to_score(item.sequence, item.num_tokens):
            score_prompt(item.sequence, logits[first_row : first_row + len(scored)], scored)
    forward_seconds = forward.seconds()  # the device has come so far: the evidence is here, or there was none to fetch
    gathered = perf_counter()
    decoding = [item.sequence for item in plan.items if item.yields and item.sequence.output_len > 0]
    results = tuple(
        _commit(item, job, next(evidence), runtime) if item.yields else _commit_chunk(item, job, runtime)
        for item, job in zip(plan.items, jobs, strict=True)
    )
    ended = perf_counter()
    result = RoundResult(
        items=results,
        draft_seconds=drafted - began,
        forward_seconds=forward_seconds,
        evidence_seconds=max(0.0, gathered - drafted - forward_seconds),
        commit_seconds=ended - gathered,
        decoding=len(decoding),
    )
    _account(result, plan, runtime, decoding)
    return result


def _draft(plan: RoundPlan, runtime: Runtime, noise: NoiseCache) -> list[DraftJob]:
    """Let the draft model catch up, then each sequence's drafter propose; one job per item, in plan order."""
    if runtime.draft is not None:
        feed_known(runtime.draft, runtime.pool, [(entry.sequence, entry.upto) for entry in plan.catch_up])
    jobs = [DraftJob(item.sequence, item.num_drafts if item.yields else 0) for item in plan.items]
    with_model: list[tuple[DraftJob, int]] = []
    by_lookup: list[DraftJob] = []
    for item, job in zip(plan.items, jobs, strict=True):
        sequence, drafter = item.sequence, item.sequence.request.drafter
        if drafter in ("multilevel", "prompt_lookup"):
            index_text(sequence, sequence.target_tokens + item.num_tokens, runtime.max_ngram)
        if job.limit == 0:
            continue
        if drafter == "prompt_lookup":
            by_lookup.append(job)
        elif drafts_with_model(sequence, runtime.draft_reach):
            job.limit = model_draft_limit(sequence, job.limit, runtime.draft_reach)
            with_model.append((job, runtime.guess_tokens if drafter == "multilevel" else 0))
    if runtime.draft is not None:
        vocab = runtime.target.vocab_size
        draft_with_model(runtime.draft, runtime.pool, with_model, noise, vocab, runtime.max_ngram)
    draft_by_lookup(by_lookup, runtime.max_ngram)
    return jobs


def _lay_out(plan: RoundPlan, jobs: list[DraftJob], block_size: int) -> RaggedLayout:
    segments = []
    for item, job in zip(plan.items, jobs, strict=True):
        sequence, begin = item.sequence, item.sequence.target_tokens
        tokens = sequence.tokens[begin : begin + item.num_tokens] + job.drafts
        num_logits = 1 + len(job.drafts) if item.yields else 0
        if scored := rows_to_score(sequence, item.num_tokens):
            num_logits = begin + len(tokens) - scored.start
        segments.append(Segment(tuple(tokens), begin, tuple(sequence.blocks), num_logits))
    return RaggedLayout.build(segments, block_size)


def _commit(item: RoundItem, job: DraftJob, evidence: Evidence, runtime: Runtime) -> ItemResult:
    """Verify one sequence's block and make its verdict final."""
    sequence = item.sequence
    known, first_token = len(sequence.tokens), sequence.output_len == 0
    loosened = loosen(evidence, sequence.request.verifier, runtime.memory.snapshot(sequence.request.drafter))
    accepted = accepted_length(evidence, loosened)
    tokens = [
        CommittedToken(token_id, provenance, _logprobs(evidence.logprobs, j, accepted))
        for j, (token_id, provenance) in enumerate(resolve_block(evidence, loosened))
    ]
    delivered = sequence.commit(tokens)
    valid = min(known + accepted, len(sequence.tokens))
    runtime.pool.commit_tokens(sequence, valid, min(job.fed, valid))
    if not first_token:
        sequence.counters.rounds += 1
        sequence.counters.round_tokens += len(delivered)
    sequence.counters.draft_tokens += len(job.drafts)
    return ItemResult(sequence, tuple(delivered), len(job.drafts), min(accepted, len(delivered)))


def _commit_chunk(item: RoundItem, job: DraftJob, runtime: Runtime) -> ItemResult:
    sequence = item.sequence
    runtime.pool.commit_tokens(sequence, sequence.target_tokens + item.num_tokens, job.fed)
    if not sequence.pending:
        sequence.finish(FinishReason.LENGTH)  # an answer of no tokens
    return ItemResult(sequence, (), 0, 0)


def _logprobs(rows: list[RowLogprobs] | None, j: int, accepted: int) -> TokenLogprobs | None:
    """Of row j: the drafted token's below the accepted length, the target's own choice at it."""
    if rows is None:
        return None
    row = rows[j]
    logprob = row.draft if j < accepted else row.choice
    assert logprob is not None  # a row below the accepted length has a draft
    return TokenLogprobs(logprob, row.top)


def _account(result: RoundResult, plan: RoundPlan, runtime: Runtime, decoding: list[Sequence]) -> None:
    """Charge the round's time to the sequences that decoded in it, and learn what a plain step costs."""
    size = len(decoding)
    if size == len(plan.items) and not any(item.drafted for item in result.items):
        runtime.cost.record(size, result.forward_seconds + result.host_seconds)
    runtime.cost.cap(size, result.forward_seconds + result.host_seconds)
    off_step = runtime.cost.off_step(size)
    if off_step is None:
        return  # nothing measured yet, so no speedup can be claimed
    delivered = {id(item.sequence): len(item.tokens) for item in result.items}
    for sequence in decoding:
        sequence.counters.round_seconds += result.seconds
        sequence.counters.off_seconds += off_step * delivered[id(sequence)]
