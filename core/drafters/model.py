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

from core.drafters.base import DraftJob
from core.drafters.prompt_lookup import lookup
from core.layout import RaggedLayout, Segment
from core.models.kv_cache import BlockPool
from core.models.runner import ModelRunner
from core.noise import NoiseCache
from core.sampling import RowGroup, choose
from core.sequence import Sequence


class ModelDrafter:
    def __init__(self, runner: ModelRunner, pool: BlockPool, guess_tokens: int = 0, max_ngram: int = 4) -> None:
        """guess_tokens: longest lookup guess a turn feeds to the draft model; 0 is plain drafting."""
        self.runner = runner
        self.pool = pool
        self.guess_tokens = guess_tokens
        self.max_ngram = max_ngram

    def draft(self, jobs: list[DraftJob], noise: NoiseCache) -> None:
        draft_with_model(self.runner, self.pool, [(job, self.guess_tokens) for job in jobs], noise, self.max_ngram)


def draft_with_model(
    runner: ModelRunner,
    pool: BlockPool,
    jobs: list[tuple[DraftJob, int]],
    noise: NoiseCache,
    max_ngram: int = 4,
) -> None:
    """Draft for (job, guess_tokens) pairs together, so that plain and multilevel share each forward."""
    for job, _ in jobs:
        pool.refresh_draft_watermark(job.sequence)
        job.fed = job.sequence.draft_tokens
    active = [(job, guess_tokens) for job, guess_tokens in jobs if job.limit > 0]
    while active:
        guesses = [_guess(job, guess_tokens, max_ngram) for job, guess_tokens in active]
        choices = _choices(runner, pool, [job for job, _ in active], guesses, noise)
        active = [
            entry
            for entry, guess, chosen in zip(active, guesses, choices, strict=True)
            if _take(entry[0], guess, chosen)
        ]


def feed_prompt(runner: ModelRunner, pool: BlockPool, targets: list[tuple[DraftJob, int]]) -> None:
    """Prefill the draft's KV up to a given number of tokens, for prompts that go through in chunks."""
    segments: list[Segment] = []
    for job, upto in targets:
        pool.refresh_draft_watermark(job.sequence)
        job.fed = job.sequence.draft_tokens
        if job.fed < upto:
            segments.append(_segment(job.sequence, job.sequence.tokens[job.fed : upto], job.fed, 0))
            job.fed = upto
    if segments:
        runner.forward(RaggedLayout.build(segments, pool.block_size))


def _guess(job: DraftJob, guess_tokens: int, max_ngram: int) -> list[int]:
    # The turn adds one choice of the draft's own behind the guess, so leave room for it.
    room = min(guess_tokens, job.limit - len(job.drafts) - 1)
    return lookup(job.sequence, job.drafts, room, max_ngram) if room > 0 else []


def _choices(
    runner: ModelRunner, pool: BlockPool, jobs: list[DraftJob], guesses: list[list[int]], noise: NoiseCache
) -> list[list[int]]:
    """One draft forward; per job the draft's choices after its known tokens and after each guessed one."""
    segments = [
        _segment(job.sequence, _unfed(job) + guess, job.fed, 1 + len(guess))
        for job, guess in zip(jobs, guesses, strict=True)
    ]
    layout = RaggedLayout.build(segments, pool.block_size)
    logits = runner.forward(layout)
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
