"""Auditor: picks loose answers, keeps them until there is time, has them replayed, and demotes what does not hold up.

    Generation --watch, offer--> queue --one at a time, in idle rounds--> replay --> figures --> guard
                                                                          \\--> metrics
All of it runs on the event loop. With sample_rate 0 nothing is watched and no task exists.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from core.provenance import FinishReason
from core.sequence import GenerationRequest
from core.verifiers.params import StrictParams, VerifierParams
from scheduler.admission import EngineStopped
from scheduler.drafting import is_loose, loosens
from scheduler.engine import AsyncEngine
from server.audit.ending import StopFactory
from server.audit.figures import Demotion, Figures
from server.audit.queue import AnswerQueue
from server.audit.record import AnswerRecord, obstacle
from server.audit.replay import Findings, replay
from server.audit.settings import AuditSettings
from server.audit.spare_time import ReplayFailedError, ReplayInterruptedError, SpareTime

log = logging.getLogger(__name__)
FAILURES = 3  # replays in a row that the engine fails; then the audit ends rather than the engine


class AuditObserver(Protocol):
    """What telemetry implements to hear what was found."""

    def on_audit(self, verifier: str, findings: Findings) -> None: ...


class Auditor:
    """defaults: the server's own parameter sets. observer: hears of every replayed answer. Belongs on the event loop,
    but for `admitted`."""

    def __init__(self, settings: AuditSettings, defaults: Iterable[VerifierParams] = ()) -> None:
        self.settings = settings
        self.figures = Figures(settings.floor, settings.min_tokens, [one for one in defaults if loosens(one)])
        self.skipped: Counter[str] = Counter()
        self.failed = 0
        self.observer: AuditObserver | None = None
        self._random = random.Random()
        self._queue = AnswerQueue(settings.queue)
        self._current: AnswerRecord | None = None
        self._arrived = asyncio.Event()
        self._spare_time: SpareTime | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, engine: AsyncEngine) -> None:
        """Begin to replay what is offered, if anything will be."""
        if self.settings.sample_rate > 0:
            self._spare_time = SpareTime(engine, self.settings.quiet_seconds)
            self._task = asyncio.create_task(self._serve(self._spare_time, engine.max_context), name="audit")

    async def stop(self) -> None:
        """Let go of whatever waits or runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def replaying(self) -> bool:
        """Whether an answer has left the queue to be replayed, as spare time allows."""
        return self._current is not None

    @property
    def waiting(self) -> int:
        """Answers in the queue."""
        return len(self._queue)

    @property
    def dropped(self) -> int:
        """Answers that gave way to newer ones."""
        return self._queue.dropped

    @property
    def interruptions(self) -> int:
        return 0 if self._spare_time is None else self._spare_time.interruptions

    def watch(
        self, request: GenerationRequest, new_stop: StopFactory, constrained: bool, held: int = 0
    ) -> AnswerRecord | None:
        """A record to be filled with the answer and offered when it has ended; None if it is not to be replayed. Asked
        once the engine has taken the request. constrained: a grammar says what the answer must be. held: bytes that
        new_stop holds on to."""
        if not self.running or not is_loose(request) or self._random.random() >= self.settings.sample_rate:
            return None
        if (reason := obstacle(request, constrained)) is not None:
            self.skipped[reason] += 1
            return None
        return AnswerRecord(request, new_stop, held)

    def offer(self, record: AnswerRecord, reason: FinishReason) -> None:
        """Queue an answer that has ended well, if anything in it was loosened."""
        if not record.loosened or not self.running:
            return
        record.finish(reason)
        if (refusal := self._queue.put(record)) is not None:
            self.skipped[refusal] += 1
        else:
            self._arrived.set()

    def admitted(self, asked: VerifierParams) -> tuple[VerifierParams, str | None]:
        """The verifier to use for a request that asked for this one, and a sentence for its report if the guard has
        put strict in its place. Any thread may ask."""
        demotion = self.figures.demotion(asked)
        if demotion is None:
            return asked, None
        return StrictParams(), f"The guard has put 'strict' in place of '{asked.type}': {self._why(demotion)}."

    def clear(self) -> None:
        """Forget what was found, which lifts all demotions, and what has yet to be: answers of before would lead to
        the same ones again."""
        self.figures = self.figures.cleared()
        self._queue.clear()
        self.skipped.clear()
        self.failed = 0
        if self._spare_time is not None:
            self._spare_time.interruptions = 0

    async def _serve(self, spare_time: SpareTime, max_context: int) -> None:
        failures = 0
        while failures < FAILURES:
            while not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
            self._current = self._queue.take()
            try:
                await self._audit(self._current, spare_time, max_context)
                failures = 0
            except EngineStopped:
                return
            except ReplayInterruptedError:
                self.skipped["interrupted"] += 1
            except Exception as error:
                failures += 1
                self.failed += 1
                log.error("audit: a replay failed: %s", error, exc_info=not isinstance(error, ReplayFailedError))
            finally:
                self._current = None
        log.error("audit: %d replays failed in a row; no more answers are audited", FAILURES)
        self._queue.clear()

    async def _audit(self, record: AnswerRecord, spare_time: SpareTime, max_context: int) -> None:
        within, most = self.settings.reconverge_tokens, self.settings.max_positions
        positions = record.judgeable(within, max_context)
        if not positions:
            self.skipped["near_cut"] += 1
            return
        if len(positions) > most:
            positions = sorted(self._random.sample(positions, most))
        figures = self.figures
        found = await replay(record, positions, within, max_context, spare_time)
        if figures is not self.figures:
            return  # cleared meanwhile
        verifier = record.request.verifier
        if (demotion := figures.add(verifier, found)) is not None:
            log.warning("audit: %s is demoted to strict: %s", verifier.model_dump_json(), self._why(demotion))
        if self.observer is not None:
            self.observer.on_audit(verifier.type, found)

    def _why(self, demotion: Demotion) -> str:
        low, high = demotion.interval
        return (
            f"of {demotion.tokens} audited loosened tokens {demotion.share:.1%} re-converged ({low:.1%} to {high:.1%} "
            f"with 95 % confidence), below audit.floor = {self.settings.floor:g} (see GET /v1/audit)"
        )
