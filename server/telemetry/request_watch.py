"""RequestWatch: one request's telemetry, from its arrival until it is closed and the last of its sequences has ended.

Both sides report to it: HTTP what it plans, what fails and when it is through (server/openai_api/answer.py,
server/generation.py), the engine how each sequence ended, which may be long after a client has left.
"""

import logging
import time
from collections.abc import Callable, MutableMapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from core.provenance import FinishReason
from core.sequence import GenerationRequest
from scheduler.events import FinishedEvent
from server import report
from server.errors import ApiError
from server.generation_plan import GenerationPlan
from server.logs import about
from server.telemetry import attributes
from server.telemetry.answer_figures import AnswerFigures

if TYPE_CHECKING:
    from server.telemetry.request_span import RequestSpan

logger = logging.getLogger(__name__)
_ENDINGS = {
    FinishReason.ERROR: ("engine_error", 500),
    FinishReason.CONSTRAINT: ("constraint_failed", 400),
    FinishReason.ABORT: ("service_unavailable", 503),
}
M = TypeVar("M", bound=Callable[..., None])


def _guarded(method: M) -> M:
    """Keep telemetry's own mistakes away from the answer."""

    @wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            method(*args, **kwargs)
        except Exception:
            logger.exception("telemetry of a request failed in %s", method.__name__)

    return cast("M", guarded)


class RequestWatch:
    """Everything on the event loop. No method raises."""

    def __init__(
        self,
        figures: AnswerFigures,
        by_sequence: "MutableMapping[str, RequestWatch]",
        operation: str,
        model: str,
        streamed: bool,
        span: "RequestSpan | None",
    ) -> None:
        """by_sequence: where the engine's observer finds the watch of a sequence; entries are made and removed here."""
        self._figures = figures
        self._by_sequence = by_sequence
        self._span = span
        self._streamed = streamed
        self._model = model
        self._began = time.monotonic()
        self._log_context = about()
        self._labels = {
            attributes.OPERATION_NAME: operation,
            attributes.PROVIDER_NAME: attributes.PROVIDER,
            attributes.REQUEST_MODEL: model,
        }
        self._plan: GenerationPlan | None = None
        self._submitted: dict[str, float] = {}  # by request_id: seconds after the arrival
        self._events: dict[str, FinishedEvent] = {}
        self._error: tuple[str, int] | None = None
        self._first_token_seen = self._closed = self._ended = False

    @_guarded
    def planned(self, plan: GenerationPlan) -> None:
        """The request has been read."""
        self._plan = plan
        request = plan.requests[0]
        self._labels["verifier"] = request.verifier.type
        self._figures.expect(request.verifier.type, request.drafter)
        if self._span is not None:
            self._span.describe(plan, self._streamed)

    @_guarded
    def submitted(self, request: GenerationRequest) -> None:
        """The engine has taken one of its sequences."""
        self._submitted[request.request_id] = self._elapsed()
        self._by_sequence[request.request_id] = self

    @_guarded
    def first_token(self) -> None:
        """One of its sequences has its first token."""
        if not self._first_token_seen:
            self._first_token_seen = True
            self._figures.first_token(self._elapsed(), self._labels)

    @_guarded
    def finished(self, request: GenerationRequest, event: FinishedEvent) -> None:
        """A sequence has ended."""
        self._by_sequence.pop(request.request_id, None)
        self._events[request.request_id] = event
        # Aborted before the request was closed: not its client left, but the engine gave it up.
        if event.reason in _ENDINGS and not self._closed:
            self._error = self._error or _ENDINGS[event.reason]
        self._end_if_done()

    @_guarded
    def fail(self, error: BaseException) -> None:
        """The request is answered with an error; the first one counts."""
        if self._error is None and isinstance(error, Exception):
            known = (error.code or error.type, error.status) if isinstance(error, ApiError) else None
            self._error = known or (type(error).__name__, 500)

    @_guarded
    def close(self) -> None:
        """HTTP is through with it: answered, failed, or given up by its client. Safe to call again."""
        self._closed = True
        self._end_if_done()

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _end_if_done(self) -> None:
        if self._closed and not self._ended and len(self._events) == len(self._submitted):
            self._ended = True
            self._end()

    def _end(self) -> None:
        seconds = self._last_token_at() if self._events else self._elapsed()
        error, status = self._error or (None, 200)
        self._figures.answer_ended(seconds, error, self._labels)
        if self._plan is not None and self._events:
            self._end_answer(self._plan, error)
        if self._span is not None:
            self._span.end(self._elapsed(), error, status)
        if status >= 500:
            logger.warning("an answer failed: %s", error, extra=self._log_context)

    def _end_answer(self, plan: GenerationPlan, error: str | None) -> None:
        order = [request.request_id for request in plan.requests if request.request_id in self._events]
        events, first = [self._events[name] for name in order], plan.requests[0]
        if error is None:
            self._figures.answer_completed(events, self._labels)
        if self._span is not None:
            for index, name in enumerate(order):
                self._span.add_sequence(index, self._submitted[name], self._events[name])
            self._span.add_answer(plan, events, self._model)
        if not any(event.reason is FinishReason.ERROR for event in events):
            # A round that died may have counted what it never delivered, so failed answers report nothing.
            speculation = report.speculation(first.verifier.type, first.drafter, events)
            self._figures.speculated(speculation, events)
            if self._span is not None:
                self._span.add_report(speculation, events)

    def _last_token_at(self) -> float:
        return max(self._submitted[name] + event.timings.total_seconds for name, event in self._events.items())
