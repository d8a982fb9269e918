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

from core.confidence import chosen_probabilities
from core.device_clock import DeviceInterval
from core.drafters.base import MODEL_DRAFTERS, DraftJob, DraftStep, explore_behind
from core.drafters.forced import force
from core.drafters.prompt_lookup import guess
from core.layout import RaggedLayout, Segment
from core.models.kv_cache import BlockPool
from core.models.runner import ModelRunner
from core.noise import NoiseCache
from core.sampling import RowGroup, choose
from core.sequence import Sequence

# Tokens guessed for each token of the suffix found again. Behind a single one, a guess of six is right for half a token
# (in code and maths) and adds a quarter to the turn's time on a CPU, one of three is right nearly as far for a tenth.
_TRUST = 3


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
    jobs: list[DraftJob],
    noise: NoiseCache,
    target_vocab: int,
    max_ngram: int,
) -> list[DraftStep]:
    """Draft for all jobs together, so that plain and multilevel share each forward; returns its forwards.

    target_vocab: ids that the target's embedding has; others are never drafted. A job that is done leaves.
    """
    for job in jobs:
        pool.refresh_draft_watermark(job.sequence)
        job.fed = job.sequence.draft_tokens
    active, steps = _wanting(jobs, runner.vocab_size), []
    while active:
        step = DeviceInterval(runner.device)
        active, guesses = _worth_a_turn(active, _guesses(active, max_ngram))
        if not active:
            break
        layout = _lay_out(active, guesses, pool.block_size)
        choices = _choices(runner, layout, active, guesses, noise, target_vocab)
        unfinished = _take(active, guesses, choices)
        step.end()
        steps.append(DraftStep(layout.num_rows, len(active), step.seconds()))
        active = _wanting(unfinished, runner.vocab_size)
    return steps


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


def _wanting(jobs: list[DraftJob], vocab: int) -> list[DraftJob]:
    """Let the jobs take what their grammars force; those for which the draft model is to go on behind it, where it can
    be fed all of it."""
    drafted = {id(job): len(job.drafts) for job in jobs}
    return [job for job in force(jobs) if all(token < vocab for token in job.drafts[drafted[id(job)] :])]


def _guesses(jobs: list[DraftJob], max_ngram: int) -> list[list[int]]:
    # The turn adds one choice of the draft's own behind the guess, so leave room for it.
    return guess([(job, min(job.guess_tokens, job.limit - len(job.drafts) - 1)) for job in jobs], max_ngram, _TRUST)


def _worth_a_turn(jobs: list[DraftJob], guesses: list[list[int]]) -> tuple[list[DraftJob], list[list[int]]]:
    """Those that are sure enough of their drafts for another turn, and their guesses."""
    kept = [
        (job, guessed) for job, guessed in zip(jobs, guesses, strict=True) if job.worth_a_turn(guessed=bool(guessed))
    ]
    return [job for job, _ in kept], [guessed for _, guessed in kept]


def _lay_out(jobs: list[DraftJob], guesses: list[list[int]], block_size: int) -> RaggedLayout:
    """What the draft's KV lacks, and the guess behind it, of which all rows but the first need logits."""
    return RaggedLayout.build(
        [
            _segment(job.sequence, _unfed(job) + guessed, job.fed, 1 + len(guessed))
            for job, guessed in zip(jobs, guesses, strict=True)
        ],
        block_size,
    )


def _choices(
    runner: ModelRunner,
    layout: RaggedLayout,
    jobs: list[DraftJob],
    guesses: list[list[int]],
    noise: NoiseCache,
    target_vocab: int,
) -> list[tuple[list[int], list[float] | None]]:
    """One draft forward; per job the draft's choices after its known tokens and after each guessed one, and how
    probable it finds them, if the job asks. Waits for the device once."""
    logits = runner.forward(layout)
    logits[:, target_vocab:] = -torch.inf
    groups = [
        RowGroup(sequence=job.sequence, start=start, drafts=job.drafts + guessed, count=1 + len(guessed))
        for job, guessed, start in zip(jobs, guesses, layout.logit_starts[:-1], strict=True)
    ]
    tokens = choose(logits, groups, noise).tokens
    asking = [group for group, job in zip(groups, jobs, strict=True) if job.min_reach > 0]
    if not asking:
        flat = tokens.tolist()
        return [(flat[group.rows], None) for group in groups]
    numbers, chances = torch.stack([tokens.double(), chosen_probabilities(logits, asking, tokens)]).tolist()
    flat = [int(number) for number in numbers]
    return [
        (flat[group.rows], chances[group.rows] if job.min_reach > 0 else None)
        for group, job in zip(groups, jobs, strict=True)
    ]


def _take(
    jobs: list[DraftJob], guesses: list[list[int]], choices: list[tuple[list[int], list[float] | None]]
) -> list[DraftJob]:
    """Keep the guesses the draft agrees with and its next choice; returns the jobs that want more."""
    kept = []
    for guessed, (chosen, _) in zip(guesses, choices, strict=True):
        agreed = 0
        while agreed < len(guessed) and guessed[agreed] == chosen[agreed]:
            agreed += 1
        kept.append(chosen[: agreed + 1])
    explore_behind(zip(jobs, kept, strict=True))
    more = []
    for job, tokens, (_, chances) in zip(jobs, kept, choices, strict=True):
        job.fed = len(job.sequence.tokens) + len(job.drafts) + len(tokens) - 1
        job.turns += 1
        if job.extend(tokens, chances):
            more.append(job)
    return more


def _unfed(job: DraftJob) -> list[int]:
    tokens = job.sequence.tokens
    if job.fed >= len(tokens):
        return job.drafts[job.fed - len(tokens) :]
    return tokens[job.fed :] + job.drafts


def _segment(sequence: Sequence, tokens: list[int], context: int, num_logits: int) -> Segment:
    return Segment(tuple(tokens), context, tuple(sequence.blocks), num_logits)
