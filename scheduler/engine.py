"""AsyncEngine: takes requests, runs rounds, publishes events.

One asyncio task repeats: settle aborts -> plan -> await the round -> publish. The round runs in a thread
of its own, the only other place where sequences and blocks are touched, and only during a round: nothing
here reads or writes them while one is in flight. Handlers on the event loop call submit() and abort(),
which reach no further than the waiting room and a set of marks, and read frozen events. The future of
the round is the one thread-safe hand-over.

    event loop    plan 1 | submit, abort, SSE ...      | publish 1, plan 2 | submit ...
    worker                 round 1 ................... |                     round 2 ...

An exception in a round ends the sequences of that round with an error; all others and the engine go on, unless
it shows that no round will ever succeed again (failures.py): then the engine ends, and says so.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from core.correction_memory import PROPOSERS
from core.device_errors import free_device_memory, is_out_of_memory
from core.grammar import Grammar
from core.provenance import FinishReason
from core.round import RoundResult, run_round
from core.runtime import Runtime
from core.sequence import GenerationRequest, Sequence, SequenceState, StopCondition
from core.spans import SpanTracker
from scheduler.admission import EngineBusy, EngineStopped, QueueFull, WaitingRoom
from scheduler.batching import Batch, Batcher
from scheduler.failures import FailureWatch
from scheduler.job import Job
from scheduler.limits import SchedulerLimits
from scheduler.observer import EngineObserver, GuardedObserver
from scheduler.roster import Roster
from scheduler.stats import Blocks, EngineStats, Totals
from scheduler.stream import RequestStream
from scheduler.validation import accept_request
from scheduler.worker import RoundWorker

logger = logging.getLogger(__name__)
T = TypeVar("T")
QUIET_SECONDS = 1.0  # the check takes tens of milliseconds for a big pool, so no request should meet it
ERROR_MESSAGE = "the engine failed while generating this answer"


class AsyncEngine:
    """All methods but the constructor belong on the event loop that start() ran on. failure: why it gave up for good;
    None while it lives, and if it was stopped."""

    def __init__(self, runtime: Runtime, limits: SchedulerLimits, observer: EngineObserver | None = None) -> None:
        self._runtime = runtime
        self._limits = limits
        self._observer = GuardedObserver(observer)
        self._totals = Totals()
        self._waiting = WaitingRoom()
        self._batcher = Batcher(
            runtime.pool,
            limits,
            self._waiting,
            self._totals,
            runtime.draft_reach,
            runtime.forward_costs,
            runtime.max_ngram,
            runtime.store,
            runtime.memory.drafters,
        )
        self._jobs = Roster()
        self._arrivals = itertools.count()
        self._accepting = False
        self.failure: Exception | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._worker = RoundWorker()
        self._failures = FailureWatch()
        self._pool_unchecked = False
        self._blocks = Blocks.of(runtime.pool)
        self._stats = self._totals.snapshot(0, 0, self._blocks)

    @property
    def max_context(self) -> int:
        """Positions one sequence may take: the limit, or the whole pool where that is smaller."""
        return self._batcher.max_context

    @property
    def capacity(self) -> int:
        """Requests that can be in the engine at once, running and waiting."""
        return self._limits.max_running + self._limits.max_waiting

    @property
    def drafters(self) -> tuple[str, ...]:
        """Those that requests may name here."""
        return self._runtime.available_drafters()

    @property
    def accepting(self) -> bool:
        return self._accepting

    @property
    def idle_seconds(self) -> float:
        """How long nobody has been here, background work aside; 0.0 while somebody is."""
        return self._jobs.idle_seconds

    async def start(self) -> None:
        """Begin to serve. RuntimeError if it was started before: an engine lives once."""
        if self._task is not None:
            raise RuntimeError("the engine was already started")
        self._accepting = True
        self._task = asyncio.create_task(self._serve(), name="engine")

    async def stop(self, drain_seconds: float = 0.0) -> int:
        """Refuse newcomers, let all that were accepted finish within drain_seconds, then abort the rest: how many."""
        self._accepting = False
        if self._task is None:
            return 0
        self._end_background()
        self._wake.set()
        _, unfinished = await asyncio.wait({self._task}, timeout=drain_seconds)
        rest = self._jobs.owned if unfinished else []
        if unfinished:
            for job in rest:
                self._abort(job)
            await asyncio.wait({self._task})
        self._worker.close()
        return len(rest)

    def submit(
        self,
        request: GenerationRequest,
        stop: StopCondition | None = None,
        *,
        grammar: Grammar | None = None,
        spans: SpanTracker | None = None,
    ) -> RequestStream:
        """Queue a request; its max_tokens is cut to what the context leaves.

        stop, grammar and spans are stateful and the engine's from now on: fresh ones for every request.
        QueueFull, ContextTooLong or EngineStopped if it is refused, ValueError if it makes no sense. A background
        one is refused as EngineBusy unless the engine is empty, and aborted when anybody comes.
        """
        if not self._accepting:
            raise EngineStopped
        if self._jobs.find(request.request_id) is not None:
            raise ValueError(f"request_id {request.request_id!r} is in use")
        if request.background and self._jobs:
            raise EngineBusy
        request = accept_request(request, self._runtime, self._limits, self.max_context)
        self._end_background()
        now = time.monotonic()
        job = Job(Sequence(request, stop, grammar=grammar, spans=spans), next(self._arrivals), now)
        # Places of sequences that could run at once are not queueing, though they pass through the room.
        places = self._limits.max_waiting + self._limits.max_running - self._running
        try:
            self._waiting.enter(job, places, now)
        except QueueFull:
            self._totals.refused += 1
            self._tell_stats()
            raise
        self._jobs.enter(job)
        self._tell_stats()
        self._wake.set()
        return RequestStream(request.request_id, job.channel, partial(self._abort, job))

    def abort(self, request_id: str) -> None:
        """End a request, at once if it waits, else after the current round; unknown ids are ignored."""
        job = self._jobs.find(request_id)
        if job is not None:
            self._abort(job)

    def stats(self) -> EngineStats:
        """Blocks are those at the start of the round in flight, if there is one. From any thread."""
        return self._stats

    def memory_pairs(self) -> dict[str, int]:
        """Pairs that the correction memory holds, by proposer. From any thread."""
        memory = self._runtime.memory
        return {proposer: memory.snapshot(proposer).num_pairs for proposer in PROPOSERS}

    def _tell_stats(self) -> None:
        """The loop alone makes them, whenever it has changed something, so that other threads see one moment."""
        if not self._worker.in_flight:
            self._blocks = Blocks.of(self._runtime.pool)
        waiting = len(self._waiting) - self._jobs.background_waits
        self._stats = self._totals.snapshot(self._running, waiting, self._blocks)

    @property
    def _running(self) -> int:
        """Jobs that run, background work aside."""
        return len(self._batcher.running) - (self._jobs.background in self._batcher.running)

    def _end_background(self) -> None:
        if self._jobs.background is not None:
            self._abort(self._jobs.background)

    def _abort(self, job: Job) -> None:
        if job not in self._jobs:
            return
        if job.sequence.state is SequenceState.WAITING:
            self._finish(job, FinishReason.ABORT)
        else:
            self._jobs.end_later(job)
        self._wake.set()

    async def _serve(self) -> None:
        try:
            while self._accepting or self._jobs:
                self._settle_aborts()
                if self._jobs:
                    await self._run_once()
                else:
                    await self._idle()
        finally:  # nobody is left here, unless the task was cancelled
            self._accepting = False
            for job in self._jobs:
                self._finish(job, FinishReason.ABORT)

    async def _run_once(self) -> None:
        began = time.perf_counter()
        try:
            batch = self._plan()
        except Exception:
            logger.exception("planning a round failed")
            first = self._waiting.first()
            self._fail(list(self._batcher.running) or [job for job in (first,) if job is not None])
            return
        planning, exhausted = time.perf_counter() - began, False
        try:
            result = await self._in_worker(partial(run_round, batch.plan, self._runtime))
            self._publish(batch, result, planning)
            self._failures.succeeded()
        except Exception as error:
            exhausted = is_out_of_memory(error)
            self._fail_round(batch, error)
        if exhausted:  # not before the exception is gone, which holds on to the round's tensors
            free_device_memory()

    def _fail_round(self, batch: Batch, error: Exception) -> None:
        logger.error("a round of %d sequences failed", len(batch.members), exc_info=error)
        if not batch.background:
            self._totals.failed_rounds += 1
        if not self._failures.is_fatal(error):
            self._fail(batch.members)
            return
        logger.critical("no round can be expected to succeed any more: the engine ends")
        self.failure, self._accepting = error, False
        self._fail(self._jobs)

    def _plan(self) -> Batch:
        batch = self._batcher.plan()
        if batch is None:
            raise RuntimeError(f"{len(self._jobs)} sequences, but none can run")
        now = time.monotonic()
        for job in batch.preempted:
            job.preempted_at.append(now)
        batch.begin(now)
        return batch

    def _publish(self, batch: Batch, result: RoundResult, planning: float) -> None:
        """planning: seconds that the round's plan took."""
        began, now = time.perf_counter(), time.monotonic()
        if not batch.background:
            self._totals.rounds += 1
            self._batcher.learn(batch, result)
        for job, item in zip(batch.jobs, result.items, strict=True):
            sequence = job.sequence
            if job.publish(item.tokens, now) and not batch.background:
                self._observer.on_first_token(sequence.request, now - job.submitted_at)
            if sequence.finish_reason is not None:
                self._finish(job, sequence.finish_reason, sequence.failure)
        self._tell_stats()
        if not batch.background:
            self._observer.on_round(result, planning + time.perf_counter() - began)

    def _settle_aborts(self) -> None:
        for job in self._jobs.ending:
            self._finish(job, FinishReason.ABORT)

    def _fail(self, jobs: Iterable[Job]) -> None:
        self._settle_aborts()
        for job in jobs:
            if job in self._jobs:
                self._finish(job, FinishReason.ERROR, ERROR_MESSAGE)

    def _finish(self, job: Job, reason: FinishReason, message: str | None = None) -> None:
        """Free what the job holds, in whatever state it is, and tell its consumer and the observer."""
        now, sequence = time.monotonic(), job.sequence
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(job)
        sequence.finish(reason)
        was_background = self._jobs.leave(job, now)
        try:
            self._batcher.remove(job)
        except Exception:
            logger.exception("the blocks of a finished sequence could not be released")
        event = job.finished_event(reason, message, now)
        if was_background and reason is FinishReason.ABORT:
            job.tell_scores()  # whoever asked goes on from there another time
        job.channel.put(event)
        if not was_background:
            self._waiting.note_finish(now)
            self._totals.finished[reason] += 1
        self._tell_stats()
        if not was_background:
            self._observer.on_finish(sequence.request, event)

    async def _idle(self) -> None:
        """Sleep until there is something to do; once it has been quiet for a while, look the pool over."""
        self._wake.clear()
        if self._pool_unchecked and self._accepting:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), QUIET_SECONDS)
                return
            try:
                await self._in_worker(partial(self._runtime.pool.check_integrity, ()))
            except Exception:
                logger.exception("the block pool is inconsistent although no sequence runs")
            self._pool_unchecked = False
        if self._accepting and not self._jobs:
            await self._wake.wait()

    async def _in_worker(self, work: Callable[[], T]) -> T:
        self._tell_stats()  # before the work begins: nobody may look at the blocks meanwhile
        self._pool_unchecked = True
        return await self._worker.run(work)
