"""Drafting with the draft model, batched over sequences: plain (`model`) and multilevel (`multilevel`).

Both run the same loop. Each turn feeds what the draft's KV lacks and takes the draft's own choice for
the next position. Multilevel (FLy's MLA) first lets prompt lookup guess up to `guess_tokens` tokens;
the turn feeds them too and keeps those that equal the draft's choices, so one forward can yield many
drafts. The drafts are the same tokens either way, only cheaper.

    known   t0 .. t9        KV valid for 9 of them       guess g0 g1 g2
    feed    t9 g0 g1 g2     choices c0 c1 c2 c3 after each
    c0 = g0, c1 != g1  ->   drafts g0, c1; KV now valid for t0 .. t9 g0 (11 tokens); g1, g2 are void

At temperature 0 a choice is the argmax; above it the draft runs the race of ALGORITHMS 1 with the
target's own processors and noise, so that it agrees with the target as often as it can.
"""

import sys
from dataclasses import dataclass

import torch

from core.drafters.base import MODEL_DRAFTERS, DraftJob, legal_part
from core.drafters.prompt_lookup import lookup
from core.layout import RaggedLayout, Segment
from core.models.kv_cache import BlockPool
from core.models.runner import ModelRunner
from core.noise import NoiseCache
from core.sampling import RowGroup, choose
from core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class DraftReach:
    """What can be fed to the draft model. vocab: width of its embedding, in ids; 0 without a draft model. context:
    positions it was made for."""

    vocab: int = 0
    context: int = sys.maxsize


def drafts_with_model(sequence: Sequence, reach: DraftReach) -> bool:
    """Whether the draft model drafts for the sequence.

    Models with the same tokens may be padded to different widths (152,064 and 151,936 in Qwen2.5), and a
    draft may have a shorter context. A text that holds an id the draft has no row for, or is longer than
    its context, cannot be fed to it, and from there on is decoded without drafts: a fact about the
    sequence's own history, so that a loose answer still depends on nothing else. The first token is never
    drafted, so an answer of no more than that is not worth feeding the prompt.
    """
    request = sequence.request
    return (
        request.drafter in MODEL_DRAFTERS
        and request.max_tokens > 1
        and sequence.highest_token < reach.vocab
        and len(sequence.tokens) <= reach.context
    )


def model_draft_limit(sequence: Sequence, num_drafts: int, reach: DraftReach) -> int:
    """How many of num_drafts drafts the draft model can make: all but the last are fed to it, within its context."""
    return min(num_drafts, reach.context + 1 - len(sequence.tokens))


def draft_with_model(
    runner: ModelRunner,
    pool: BlockPool,
    jobs: list[tuple[DraftJob, int]],
    noise: NoiseCache,
    target_vocab: int,
    max_ngram: int,
) -> None:
    """Draft for (job, guess_tokens) pairs together, so that plain and multilevel share each forward.

    guess_tokens: longest lookup guess a turn feeds to the draft model; 0 is plain drafting. target_vocab:
    ids that the target's embedding has; others are never drafted.
    """
    for job, _ in jobs:
        pool.refresh_draft_watermark(job.sequence)
        job.fed = job.sequence.draft_tokens
    active = [(job, guess_tokens) for job, guess_tokens in jobs if job.limit > 0]
    while active:
        guesses = [_guess(job, guess_tokens, max_ngram) for job, guess_tokens in active]
        choices = _choices(runner, pool, [job for job, _ in active], guesses, noise, target_vocab)
        active = [
            entry
            for entry, guess, chosen in zip(active, guesses, choices, strict=True)
            if _take(entry[0], guess, chosen)
        ]


def feed_known(runner: ModelRunner, pool: BlockPool, targets: list[tuple[Sequence, int]]) -> None:
    """One draft forward that brings each sequence's draft KV to its first so many tokens, and its watermark with it.

    The tokens are verified, and no more than its blocks hold.
    """
    lacking = [(sequence, upto) for sequence, upto in targets if sequence.draft_tokens < upto]
    if not lacking:
        return
    segments = [_segment(s, s.tokens[s.draft_tokens : upto], s.draft_tokens, 0) for s, upto in lacking]
    runner.forward(RaggedLayout.build(segments, pool.block_size))
    for sequence, upto in lacking:
        pool.commit_tokens(sequence, sequence.target_tokens, upto)


def _guess(job: DraftJob, guess_tokens: int, max_ngram: int) -> list[int]:
    # The turn adds one choice of the draft's own behind the guess, so leave room for it.
    room = min(guess_tokens, job.limit - len(job.drafts) - 1)
    guess = lookup(job.sequence, job.drafts, room, max_ngram) if room > 0 else []
    grammar = job.sequence.grammar
    # A forward of the draft model is not worth spending on what the grammar forbids.
    return guess if grammar is None or not guess else legal_part(grammar, job.drafts, guess)


def _choices(
    runner: ModelRunner,
    pool: BlockPool,
    jobs: list[DraftJob],
    guesses: list[list[int]],
    noise: NoiseCache,
    target_vocab: int,
) -> list[list[int]]:
    """One draft forward; per job the draft's choices after its known tokens and after each guessed one."""
    segments = [
        _segment(job.sequence, _unfed(job) + guess, job.fed, 1 + len(guess))
        for job, guess in zip(jobs, guesses, strict=True)
    ]
    layout = RaggedLayout.build(segments, pool.block_size)
    logits = runner.forward(layout)
    logits[:, target_vocab:] = -torch.inf
    groups = [
        RowGroup(sequence=job.sequence, start=start, drafts=job.drafts + guess, count=1 + len(guess))
        for job, guess, start in zip(jobs, guesses, layout.logit_starts[:-1], strict=True)
    ]
    flat = choose(logits, groups, noise).tokens.tolist()
    return [flat[group.rows] for group in groups]


def _take(job: DraftJob, guess: list[int], chosen: list[int]) -> bool:
    """Keep the guesses the draft agrees with and its next choice; True while the job wants more."""
    agreed = 0
    while agreed < len(guess) and guess[agreed] == chosen[agreed]:
        agreed += 1
    job.fed = len(job.sequence.tokens) + len(job.drafts) + agreed
    return job.extend(chosen[: agreed + 1])


def _unfed(job: DraftJob) -> list[int]:
    tokens = job.sequence.tokens
    if job.fed >= len(tokens):
        return job.drafts[job.fed - len(tokens) :]
    return tokens[job.fed :] + job.drafts


def _segment(sequence: Sequence, tokens: list[int], context: int, num_logits: int) -> Segment:
    return Segment(tuple(tokens), context, tuple(sequence.blocks), num_logits)
