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

from time import perf_counter

from core.device_clock import DeviceInterval
from core.drafters.base import FREE_DRAFTERS, LOOKUP_DRAFTERS, MODEL_DRAFTERS, DraftJob, DraftStep, drafters_of
from core.drafters.datastore import draft_from_store
from core.drafters.forced import force, look_ahead
from core.drafters.model import draft_with_model, drafts_with_model, feed_known, model_draft_limit
from core.drafters.prompt_lookup import draft_by_lookup, index_delivered, index_round
from core.drafters.token_recycling import draft_by_recycling, recycle
from core.evidence import Evidence, RowLogprobs, VerifyBlock, gather_evidence
from core.layout import RaggedLayout, Segment
from core.noise import NoiseCache
from core.prompt_logprobs import rows_to_score, score_prompt
from core.provenance import FinishReason
from core.round_plan import CatchUp, ItemResult, RoundItem, RoundPlan, RoundResult
from core.runtime import Runtime
from core.sequence import CommittedToken, Sequence, TokenLogprobs
from core.verifiers.csd import learned_pairs, memory_use
from core.verifiers.params import CsdParams, HybridParams
from core.verifiers.registry import accepted_length, loosen, resolve_block

__all__ = ["CatchUp", "ItemResult", "RoundItem", "RoundPlan", "RoundResult", "run_round"]


def run_round(plan: RoundPlan, runtime: Runtime) -> RoundResult:
    """Run one round; the only caller of the target's forward. Mutates the plan's sequences and the pool."""
    began, records = perf_counter(), runtime.records
    runtime.memory.merge_round()  # what earlier rounds taught it; from here on every sequence sees the same
    noise = NoiseCache()
    jobs, draft_steps = _draft(plan, runtime, noise)
    if not plan.items and runtime.draft is not None:
        runtime.draft.wait()  # a device may still be feeding; its time is this round's
    drafted = perf_counter()
    if not plan.items:
        return RoundResult((), drafted - began, 0.0, 0.0, 0.0, decoding=0, drafting=True)
    forward = DeviceInterval(runtime.target.device)
    layout = _lay_out(plan, jobs, runtime.pool.block_size)
    logits = runtime.target.forward(layout)
    forward.end()
    blocks = [
        VerifyBlock(
            item.sequence,
            end_row - 1 - len(job.drafts),
            job.drafts,
            runtime.memory.snapshot(item.proposer),
            runtime.memory.learns,
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
    look_ahead(item.sequence for item in results if item.tokens and item.sequence.request.adaptive)
    index_delivered(item.sequence for item in results if item.tokens)
    ended = perf_counter()
    result = RoundResult(
        items=results,
        draft_seconds=drafted - began,
        forward_seconds=forward_seconds,
        evidence_seconds=max(0.0, gathered - drafted - forward_seconds),
        commit_seconds=ended - gathered,
        decoding=len(decoding),
        draft_steps=tuple(draft_steps),
        drafting=bool(plan.catch_up) or any(job.limit for job in jobs),
    )
    _account(result, plan, runtime, decoding, usual=runtime.records == records)
    return result


def _draft(plan: RoundPlan, runtime: Runtime, noise: NoiseCache) -> tuple[list[DraftJob], list[DraftStep]]:
    """Let the draft model catch up, then each sequence's drafter propose; one job per item, in plan order, and the
    draft model's forwards."""
    known = [(entry.sequence, entry.upto) for entry in plan.catch_up]
    if runtime.across is not None:
        runtime.across.read(known, [item.sequence for item in plan.items if item.num_drafts])
    elif runtime.draft is not None:
        feed_known(runtime.draft, runtime.pool, known)
    jobs = [DraftJob(item.sequence, item.num_drafts if item.yields else 0) for item in plan.items]
    texts = ((s := item.sequence, s.target_tokens + item.num_tokens) for item in plan.items if _looks_up(item))
    index_round(texts, runtime.max_ngram)
    with_model: list[DraftJob] = []
    freely: dict[str, list[DraftJob]] = {name: [] for name in FREE_DRAFTERS}
    others: list[DraftJob] = []
    for item, job in zip(plan.items, jobs, strict=True):
        sequence, drafter = item.sequence, item.proposer
        if drafter in MODEL_DRAFTERS and drafts_with_model(sequence, runtime.draft_reach):
            job.limit = model_draft_limit(sequence, job.limit, runtime.draft_reach)
            job.min_reach, job.min_guessed_reach = item.min_reach, item.min_guessed_reach
            job.doubt, job.forgiving = item.doubt, item.forgiving
            job.guess_tokens = runtime.guess_tokens if drafter == "multilevel" else 0
            with_model.append(job)
        elif drafter in freely:
            freely[drafter].append(job)
        else:
            others.append(job)
    force(others)
    steps: list[DraftStep] = []
    if runtime.across is not None:
        steps = runtime.across.draft(with_model)
        for job in jobs:  # those who drafted may have needed the room of the others
            job.fed = job.sequence.draft_tokens
    elif runtime.draft is not None:
        vocab = runtime.target.vocab_size
        steps = draft_with_model(runtime.draft, runtime.pool, with_model, noise, vocab, runtime.max_ngram)
    draft_by_lookup(freely["prompt_lookup"], runtime.max_ngram)
    draft_by_recycling(freely["token_recycling"])
    if runtime.store is not None:
        draft_from_store(freely["datastore"], runtime.store)
    return jobs, steps


def _looks_up(item: RoundItem) -> bool:
    """Whether lookup drafts for the sequence, in this round or another one."""
    return not {item.proposer, *drafters_of(item.sequence.request)}.isdisjoint(LOOKUP_DRAFTERS)


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
    params, memory = sequence.request.verifier, runtime.memory.snapshot(item.proposer)
    loosened = loosen(evidence, params, memory)
    accepted = accepted_length(evidence, loosened)
    if evidence.candidates is not None:
        recycle(sequence, evidence.draft, evidence.candidates, accepted)
    told = sequence.request.verdicts
    tokens = [
        CommittedToken(
            token_id, provenance, _logprobs(evidence.logprobs, j, accepted), evidence.verdict(j) if told else None
        )
        for j, (token_id, provenance) in enumerate(resolve_block(evidence, loosened))
    ]
    delivered = sequence.commit(tokens)
    if runtime.memory.learns and item.proposer != "none" and isinstance(params, CsdParams | HybridParams):
        runtime.memory.learn(item.proposer, learned_pairs(evidence, loosened, params, len(delivered)))
    valid = min(known + accepted, len(sequence.tokens))
    runtime.pool.commit_tokens(sequence, valid, min(job.fed, valid))
    if not first_token:
        sequence.counters.rounds += 1
        sequence.counters.round_tokens += len(delivered)
    sequence.counters.draft_tokens += len(job.drafts)
    lookups, hits = memory_use(evidence, accepted, params, memory)
    return ItemResult(
        sequence,
        tuple(delivered),
        len(job.drafts),
        min(accepted, len(delivered)),
        tuple(job.reaches),
        job.turns,
        (job.drafts[accepted], evidence.choice[accepted]) if accepted < min(len(job.drafts), len(delivered)) else None,
        verified=not first_token,
        memory_lookups=lookups,
        memory_hits=hits,
    )


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


def _account(result: RoundResult, plan: RoundPlan, runtime: Runtime, decoding: list[Sequence], usual: bool) -> None:
    """Charge the round's time to the sequences that decoded in it, and learn what steps cost. usual: it took no time
    that the next one like it will not take. Of background work neither: what users are told, and how long their drafts
    are, must not depend on it."""
    if any(item.sequence.request.background for item in plan.items):
        return
    size = len(decoding)
    if usual and size == len(plan.items):
        rows = sum(item.num_tokens for item in plan.items) + sum(item.drafted for item in result.items)
        positions = sum(len(sequence.tokens) for sequence in decoding)
        seconds = result.forward_seconds + result.host_seconds
        runtime.forward_costs.observe(rows, size, positions, seconds, result.draft_steps)
    if usual and size == len(plan.items) and not any(item.drafted for item in result.items):
        runtime.cost.record(size, result.forward_seconds + result.host_seconds)
    runtime.cost.cap(size, result.forward_seconds + result.host_seconds)
    off_step = runtime.cost.off_step(size)
    if off_step is None:
        return  # nothing measured yet, so no speedup can be claimed
    delivered = {id(item.sequence): len(item.tokens) for item in result.items}
    for sequence in decoding:
        sequence.counters.round_seconds += result.seconds
        sequence.counters.off_seconds += off_step * delivered[id(sequence)]
