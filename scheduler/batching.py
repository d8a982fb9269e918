"""Batcher: who runs in the next round, with how many tokens and drafts, and who gives up its blocks.

A round is planned in four steps.
0. Draft lengths: how much everyone wants to draft (draft_planner.py), then the draft model's backlog: who is fed,
   and whose drafts have to wait for it (draft_feed.py).
1. Rows. Decoding sequences first, then prompts being prefilled, in rank order (sharing.py).
2. Blocks, most urgent first. Where the pool runs dry, a strict block is cut, a chunk shortened, and
   then the least urgent running sequence is preempted: its blocks are released and it goes back to the
   waiting room, to be recomputed later. Only less urgent ones are preempted; whoever finds none keeps
   its blocks and waits a round.
3. Admission of waiting sequences into what is left, never by preempting.

Progress: no sequence can outgrow the pool (`max_context` here is at most the pool's size), so the most
urgent running one can always have what it needs. If the rest of a plan fails on blocks, it runs alone.

Prefill and decoding never starve each other: when decoding left a waiting prompt less than its part of
a round, the next round holds that part back for it, once. So at worst they take turns.
"""

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from operator import attrgetter

from core.drafters.model import DraftReach
from core.forward_costs import LiveCosts
from core.models.kv_cache import BlockPool
from core.round import CatchUp, RoundPlan, RoundResult
from core.sequence import SequenceState
from core.token_store import TokenStore
from scheduler.admission import WaitingRoom
from scheduler.draft_feed import DraftFeed
from scheduler.draft_options import DraftOptions
from scheduler.draft_planner import DraftPlanner
from scheduler.job import Job
from scheduler.limits import SchedulerLimits
from scheduler.sharing import Share, share_decode_rows, share_prefill_rows, total_rows
from scheduler.stats import Totals


@dataclass(frozen=True, slots=True)
class Batch:
    """A planned round. jobs: in the order of the plan's items. catching_up: those of its catch-ups, among them
    perhaps some of `jobs`. preempted: those that had to make room for it."""

    plan: RoundPlan
    jobs: tuple[Job, ...]
    catching_up: tuple[Job, ...]
    preempted: tuple[Job, ...]

    @property
    def members(self) -> tuple[Job, ...]:
        """All that the round works for, each once."""
        return tuple(dict.fromkeys((*self.jobs, *self.catching_up)))

    @property
    def background(self) -> bool:
        """Whether it is the server's own work, in which nobody else has a part."""
        return any(job.sequence.request.background for job in self.jobs)

    def begin(self, now: float) -> None:
        """Note when its members ran for the first time, in monotonic seconds."""
        for job in self.members:
            if job.started_at is None:
                job.started_at = now


class Batcher:
    """Owns the set of running jobs; the waiting room is shared with the engine, which queues newcomers there."""

    def __init__(
        self,
        pool: BlockPool,
        limits: SchedulerLimits,
        waiting: WaitingRoom,
        totals: Totals,
        reach: DraftReach,
        costs: LiveCosts | None = None,
        max_ngram: int = 4,
        store: TokenStore | None = None,
        calibrated: Collection[str] = (),
    ) -> None:
        """reach, max_ngram, store, calibrated: as DraftOptions takes them. costs: of forwards; while there are none all
        draft lengths are fixed."""
        self.pool = pool
        self.reach = reach
        self.limits = limits
        self.waiting = waiting
        self.max_context = min(limits.max_context, pool.num_blocks * pool.block_size)
        options = DraftOptions(reach, max_ngram, self.max_context, store, calibrated)
        self.drafts = DraftPlanner(costs or LiveCosts(), options)
        self.running: dict[Job, None] = {}  # a set that keeps its order
        self.totals = totals
        self._turns = itertools.count(1)
        self._prefill_owed = False
        self._blocked: tuple[Job, int] | None = None  # the first in line, and the free blocks it did not fit in

    def plan(self) -> Batch | None:
        """The next round; None if there is nobody to run. Grows block tables, admits and preempts."""
        preempted: list[Job] = []
        shares, catch_ups = self._plan_for(self.running, preempted, admit=True)
        if not shares and not catch_ups and self.running:
            most_urgent = min(self.running, key=lambda job: job.rank)
            shares, catch_ups = self._plan_for([most_urgent], preempted, admit=False)
        if not shares and not catch_ups:
            return None
        plan = RoundPlan(tuple(share.item for share in shares), tuple(catch_ups.values()))
        return Batch(plan, tuple(share.job for share in shares), tuple(catch_ups), tuple(preempted))

    def learn(self, batch: Batch, result: RoundResult) -> None:
        """Take in what became of a round's drafts."""
        for job, item, outcome in zip(batch.jobs, batch.plan.items, result.items, strict=True):
            self.drafts.learn(job, item.num_drafts, outcome)

    def _plan_for(
        self, jobs: Collection[Job], preempted: list[Job], admit: bool
    ) -> tuple[list[Share], dict[Job, CatchUp]]:
        """Shares and catch-ups of these running jobs, and of newcomers; adds to `preempted`."""
        self.drafts.plan(jobs, self.limits.prefill_chunk)
        feed = DraftFeed(self.pool, self.drafts.feed_budget, self.reach, self.drafts.reads_prompts)
        feed.consider_all(jobs)
        shares = self._give_blocks(self._share_rows(jobs), preempted)
        if admit:
            self._admit(shares, feed)
        return shares, feed.catch_ups(self.running, shares)

    def remove(self, job: Job) -> None:
        """Free the blocks of a job that finished or was aborted; nothing to do for one that is not running."""
        if job in self.running:
            del self.running[job]
            self.pool.release(job.sequence)

    def _share_rows(self, jobs: Iterable[Job]) -> list[Share]:
        jobs = list(jobs)
        decoding = [job for job in jobs if job.decoding]
        prefilling = sorted((job for job in jobs if not job.decoding), key=lambda job: job.rank)
        part = self._prefill_part(prefilling)
        rows = self.limits.round_tokens
        shares = share_decode_rows(decoding, rows - part if self._prefill_owed else rows, self.max_context)
        for share in shares:
            share.job.last_turn = next(self._turns)  # it has had its turn, even if it finds no blocks
        rows -= total_rows(shares)
        self._prefill_owed = rows < part
        chunk = self.limits.prefill_chunk
        for job in prefilling:
            piece = share_prefill_rows(job, chunk, rows, self.max_context, self.limits.scored_cost)
            if piece is None:
                break
            chunk -= piece.chunk_cost
            rows -= piece.rows
            shares.append(piece)
        return shares

    def _prefill_part(self, prefilling: list[Job]) -> int:
        """Rows that prompts may claim of a round that decoding could fill: up to half of it, if they can use them."""
        known = sum(job.sequence.pending for job in prefilling)
        first = self._admissible()
        if first is not None:
            known += first.sequence.pending
        return min(known, self.limits.prefill_chunk, max(1, self.limits.round_tokens // 2))

    def _give_blocks(self, shares: list[Share], preempted: list[Job]) -> list[Share]:
        """Grow the block tables, most urgent first; returns the shares that can run."""
        granted = []
        for share in sorted(shares, key=attrgetter("job.rank")):
            while share.job in self.running:
                if self._grow(share):
                    granted.append(share)
                    break
                victim = self._victim(share.job)
                if victim is None:
                    break
                self._preempt(victim)
                preempted.append(victim)
        return granted

    def _grow(self, share: Share) -> bool:
        """Find blocks for the share, cutting what may be cut; False if not even its least part fits."""
        sequence, pool = share.job.sequence, self.pool
        if pool.grow(sequence, sequence.target_tokens + share.rows):
            return True
        room = (len(sequence.blocks) + pool.num_free) * pool.block_size - sequence.target_tokens
        num_tokens, num_drafts = share.num_tokens, 0
        if room >= num_tokens and not share.job.loose:
            num_drafts = room - num_tokens
        elif share.prefill:
            # One token less than all of them, lest the round end the prefill of a loose block without its drafts.
            num_tokens = min(room, num_tokens, sequence.pending - 1)
        else:
            return False
        if num_tokens < 1 or not pool.grow(sequence, sequence.target_tokens + num_tokens + num_drafts):
            return False
        share.num_tokens, share.num_drafts = num_tokens, num_drafts
        return True

    def _victim(self, job: Job) -> Job | None:
        """The least urgent running job that holds blocks and is less urgent than `job`."""
        others = (other for other in self.running if other.rank > job.rank and other.sequence.blocks)
        return max(others, key=lambda other: other.rank, default=None)

    def _preempt(self, job: Job) -> None:
        self.remove(job)
        job.sequence.state = SequenceState.WAITING
        job.sequence.counters.preemptions += 1
        self.totals.preemptions += 1
        self.waiting.put(job)

    def _admissible(self) -> Job | None:
        """The first in line, unless the running limit or its blocks are known to keep it out."""
        first = self.waiting.first()
        if first is None or len(self.running) >= self.limits.max_running:
            return None
        if self.running and self._blocked is not None:
            job, free_blocks = self._blocked
            if job is first and self.pool.num_free <= free_blocks:
                return None
        return first

    def _admit(self, shares: list[Share], feed: DraftFeed) -> None:
        """Let waiting jobs in, in order, while rows, chunk and blocks last; adds their shares."""
        chunk = self.limits.prefill_chunk - sum(share.chunk_cost for share in shares if share.prefill)
        rows = self.limits.round_tokens - total_rows(shares)
        while chunk > 0 and rows > 0 and (job := self._admissible()) is not None:
            free_blocks = self.pool.num_free
            cached_tokens = self.pool.match_prefix(job.sequence)
            if not self._fits(job):
                self.pool.release(job.sequence)
                self._blocked = (job, free_blocks)
                return
            self._let_in(job, cached_tokens)
            feed.consider(job)
            share = share_prefill_rows(job, chunk, rows, self.max_context, self.limits.scored_cost)
            if share is None or not self._grow(share):
                return  # it is in, and takes its rows in the next round
            chunk -= share.chunk_cost
            rows -= share.rows
            shares.append(share)

    def _fits(self, job: Job) -> bool:
        """Whether the job's known tokens and next drafts fit beside what the running ones still need for theirs.

        A little headroom beyond that keeps a newcomer from being preempted at once by its elders' growth.
        """
        if not self.running:
            return True
        promised = sum(self._lacking_blocks(other) for other in self.running)
        headroom = max(1, self.pool.num_blocks // 100)
        return self._lacking_blocks(job) + promised + headroom <= self.pool.num_free

    def _lacking_blocks(self, job: Job) -> int:
        sequence = job.sequence
        positions = min(len(sequence.tokens) + 1 + sequence.request.num_draft_tokens, self.max_context)
        return max(0, -(-positions // self.pool.block_size) - len(sequence.blocks))

    def _let_in(self, job: Job, cached_tokens: int) -> None:
        self.waiting.take_first()
        self.running[job] = None
        self.drafts.adopt(job)
        job.sequence.state = SequenceState.RUNNING
        self._blocked = None
        if job.sequence.counters.preemptions == 0:
            job.sequence.counters.cached_prompt_tokens = cached_tokens
