"""EngineObserver: what telemetry implements to hear from the engine, and the guard around it."""

import logging
from typing import Protocol

from core.round import RoundResult
from core.sequence import GenerationRequest
from scheduler.events import FinishedEvent

logger = logging.getLogger(__name__)


class EngineObserver(Protocol):
    """Called on the event loop between rounds: be quick, keep nothing of a RoundResult's sequences.

    An exception is logged and goes no further. Every submitted request sees on_finish exactly once. Nobody hears of
    background work.
    """

    def on_round(self, result: RoundResult, schedule_seconds: float) -> None:
        """A round whose tokens have just been published. schedule_seconds: the event loop's time for planning it and
        for publishing what it gave."""
        ...

    def on_first_token(self, request: GenerationRequest, seconds: float) -> None:
        """seconds: since the submission."""
        ...

    def on_finish(self, request: GenerationRequest, event: FinishedEvent) -> None: ...


class GuardedObserver:
    """Forwards to an observer, if there is one, and keeps its mistakes away from the engine."""

    def __init__(self, observer: EngineObserver | None) -> None:
        self._observer = observer

    def on_round(self, result: RoundResult, schedule_seconds: float) -> None:
        self._tell("on_round", result, schedule_seconds)

    def on_first_token(self, request: GenerationRequest, seconds: float) -> None:
        self._tell("on_first_token", request, seconds)

    def on_finish(self, request: GenerationRequest, event: FinishedEvent) -> None:
        self._tell("on_finish", request, event)

    def _tell(self, method: str, *arguments: object) -> None:
        if self._observer is None:
            return
        try:
            getattr(self._observer, method)(*arguments)
        except Exception:
            logger.exception("an observer failed in %s", method)
