"""DraftFeed: how much the draft model may read in one round, and who has to wait for it.

A sequence's draft KV may lag far behind its text: its prompt came from cached blocks that an `off`
request filled, or it decoded without drafts for a while. Feeding all of it in its next draft turn
would hold up everyone in the round, and sequences that share the blocks would each do it over again.
So what is fed is bounded: at most `prefill_chunk` tokens a round, most urgent sequence first.

Worked example, a budget of 32; a and b share the same 400 prompt tokens, which the draft has not read,
c lags by 20, d by 3 with K = 4:

    a    400 to feed: 32 of them now, and no drafts in this round; nothing is left
    b    would write the blocks that a writes: nothing; next round it finds them written
    c    20 to feed, nothing left: no drafts
    d    lags by at most 1 + K, as after any round: drafts, free

Without drafts a strict sequence decodes; a loose one waits, for where its blocks begin and end is part
of its answer. Nobody waits for a first token: it needs no drafts.
"""

from collections.abc import Collection, Iterable
from operator import attrgetter

from core.drafters.base import MODEL_DRAFTERS
from core.drafters.model import DraftReach, drafts_with_model
from core.models.kv_cache import BlockPool
from core.round import CatchUp
from scheduler.job import Job
from scheduler.sharing import Share


class DraftFeed:
    """One round's decisions: `consider` sets `Job.drafts_wait`, `catch_ups` gives the plan's orders."""

    def __init__(self, pool: BlockPool, budget: int, reach: DraftReach, reads_prompts: bool = True) -> None:
        """budget: tokens to feed, over all sequences. reads_prompts: whether those of adaptive strict ones are read
        along, though nobody knows yet if they will draft."""
        self._pool = pool
        self._left = budget
        self._reach = reach
        self._reads_prompts = reads_prompts
        self._upto: dict[Job, int] = {}  # the first so many tokens of a sequence are within the budget
        self._written: set[int] = set()  # blocks that somebody feeds in this round

    def consider_all(self, jobs: Iterable[Job]) -> None:
        for job in sorted(jobs, key=attrgetter("rank")):
            self.consider(job)

    def consider(self, job: Job) -> None:
        """Decide whether a running job may draft; the more urgent ones come first. O(1) unless it lags."""
        self._upto.pop(job, None)  # of before it was preempted, in this very plan
        job.drafts_wait = False
        if job.sequence.output_len and self._wants_model(job):
            job.drafts_wait = self._lags(job) and not self._allow(job)
            if not job.drafts_wait:
                # A newcomer of this very plan may come to share them.
                self._written.update(self._unfed(job))

    def catch_ups(self, running: Collection[Job], shares: Iterable[Share]) -> dict[Job, CatchUp]:
        """Orders for the round in which the jobs have these shares.

        A long prompt is fed along with its chunks, out of what is left, so that its first draft turn is
        short. Whoever drafts needs no order: its first draft turn feeds what it lacks.
        """
        share_of = {share.job: share for share in shares}
        for job, share in share_of.items():
            first = not job.sequence.output_len and share.num_tokens < job.sequence.pending
            if first and self._wants_model(job) and self._lags(job):
                self._allow(job)
        orders = {}
        for job, allowed in self._upto.items():
            sequence, its = job.sequence, share_of.get(job)
            if job in running and not (its and its.num_drafts):
                upto = min(allowed, sequence.target_tokens + (its.num_tokens if its else 0))
                if upto > sequence.draft_tokens:
                    orders[job] = CatchUp(sequence, upto)
        return orders

    def _wants_model(self, job: Job) -> bool:
        """Whether the draft model is to draft for the job: now, or once its prompt is read."""
        wish, request = job.drafting.wish, job.sequence.request
        if not job.sequence.output_len:
            asked = self._reads_prompts or job.loose or not request.adaptive
        else:
            asked = wish is None or (wish.num_drafts > 0 and wish.drafter in MODEL_DRAFTERS)
        return asked and drafts_with_model(job.sequence, self._reach)

    def _lags(self, job: Job) -> bool:
        """Whether the draft, which is to draft for it, lacks more than a round leaves behind, or KV that others lack in
        the same blocks."""
        sequence = job.sequence
        self._pool.refresh_draft_watermark(sequence)
        if len(sequence.tokens) - sequence.draft_tokens > 1 + sequence.request.num_draft_tokens:
            return True
        return any(map(self._pool.is_shared, self._unfed(job)))

    def _unfed(self, job: Job) -> list[int]:
        """Blocks of computed tokens that the draft has not read, or not to their end."""
        sequence, size = job.sequence, self._pool.block_size
        return sequence.blocks[sequence.draft_tokens // size : -(-sequence.target_tokens // size)]

    def _allow(self, job: Job) -> bool:
        """Charge what the job lacks, as far as the budget goes; whether that is all of it.

        Not the newest token: every draft turn feeds that one.
        """
        sequence, size, wanted = job.sequence, self._pool.block_size, len(job.sequence.tokens) - 1
        first = sequence.draft_tokens // size
        if not self._left or not self._written.isdisjoint(sequence.blocks[first:]):
            return False
        upto = min(wanted, sequence.draft_tokens + self._left)
        self._left -= upto - sequence.draft_tokens
        self._written.update(sequence.blocks[first : -(-upto // size)])
        self._upto[job] = upto
        return upto == wanted
