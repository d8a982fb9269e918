"""Readiness: from the bound port to the first real forward, and to the end.

    loading -> warming up -> ready -> stopping
          \\-> failed                \\-> failed (the engine gave up)

Requests get the model only when it is ready; before and after they get 503 with the reason and Retry-After.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from core.provenance import FinishReason
from core.sampling_params import SamplingParams
from core.sequence import GenerationRequest
from core.verifiers.params import OffParams
from scheduler.events import FinishedEvent
from scheduler.stats import EngineStats
from server.audit.auditor import Auditor
from server.errors import unavailable
from server.live_model import LiveModel
from server.memory_store.exchange import MemoryExchange
from server.serving_config import Served, ServingConfig

logger = logging.getLogger(__name__)
Loader = Callable[[], Awaitable[Served]]
_REASONS = {
    "loading": "The model is being loaded.",
    "warming up": "The model is loaded and runs its first forward.",
    "failed": "The model could not be loaded; the server's log says why.",
    "stopping": "The server is shutting down.",
}


class Readiness:
    """status: where the life of the server stands. error: what loading raised, if it failed. engine_failure: why the
    engine gave up, if it did."""

    def __init__(self, config: ServingConfig, load: Loader, auditor: Auditor) -> None:
        self._config = config
        self._auditor = auditor
        self._load = load
        self._model: LiveModel | None = None
        self._exchange: MemoryExchange | None = None
        self._task: asyncio.Task[None] | None = None
        self.status = "loading"
        self.error: Exception | None = None

    def model(self) -> LiveModel:
        """The model, if it is ready. ApiError 503 otherwise."""
        reason = self.reason()
        if reason is not None or self._model is None:
            raise unavailable(reason or _REASONS["loading"], self._config.queue_retry_after)
        return self._model

    def reason(self) -> str | None:
        """Why no request is served now; None if they are."""
        if self.status == "ready" and self._model is not None and not self._model.engine.accepting:
            return "The engine has stopped; the server's log says why."
        return _REASONS.get(self.status)

    @property
    def engine_failure(self) -> Exception | None:
        return None if self._model is None else self._model.engine.failure

    def stats(self) -> EngineStats | None:
        """Of the engine now, if there is one. From any thread."""
        return None if self._model is None else self._model.engine.stats()

    def memory_pairs(self) -> dict[str, int]:
        """Pairs that the correction memory holds, by proposer. From any thread."""
        return {} if self._model is None else self._model.engine.memory_pairs()

    def begin(self, when_ready: Callable[[], None]) -> None:
        """Load in the background; when_ready is called just before requests are let in."""
        self._task = asyncio.create_task(self._become_ready(when_ready), name="load")

    async def _become_ready(self, when_ready: Callable[[], None]) -> None:
        try:
            served = await self._load()
            model = await asyncio.to_thread(LiveModel.build, served, self._config, self._auditor)
            await model.engine.start()
            self._model = model
            self.status = "warming up"
            await _warm_up(model)
            if served.exchange is not None:
                self._exchange = served.exchange
                self._exchange.start()
        except Exception as error:
            self.status, self.error = "failed", error
            logger.exception("loading the model failed")
            return
        when_ready()
        self._auditor.start(model.engine)
        self.status = "ready"
        logger.info("ready: %s, context %d tokens", self._config.model, model.max_context)

    async def end(self) -> int:
        """Stop loading, or let running answers finish within the configured time. How many were cut off then."""
        self.status = "stopping"
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._auditor.stop()
        cut_off = 0 if self._model is None else await self._model.engine.stop(self._config.drain_seconds)
        if self._exchange is not None:
            await asyncio.to_thread(self._exchange.stop)
        return cut_off


async def _warm_up(model: LiveModel) -> None:
    """One tiny request through the whole engine. RuntimeError if it fails."""
    token = next(token for token in range(model.vocab_size) if token not in model.eos_token_ids)
    request = GenerationRequest(
        request_id="warm-up",
        prompt=(token,),
        max_tokens=2,
        sampling=SamplingParams(temperature=0.0),
        verifier=OffParams(),
    )
    async with model.engine.submit(request) as stream:
        async for event in stream:
            if isinstance(event, FinishedEvent) and event.reason not in (FinishReason.STOP, FinishReason.LENGTH):
                raise RuntimeError(event.message or f"the first forward ended with {event.reason.value}")
