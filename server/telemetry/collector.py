"""Collector: whoever receives what is exported, and exporters that report its silence once.

The SDK's exporters log every failed attempt and every retry. A collector that is down is no fault of this server, its
answers go on, and one line at the beginning and one at the end of the outage say all there is to know.
"""

import logging
import re
import threading
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from server.telemetry.values import header_secrets, value

logger = logging.getLogger(__name__)

_REASON_LENGTH = 500
# Whatever they say while exporting is said here, once.
_TALKATIVE = (
    "opentelemetry.exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.metrics._internal.export",
    "opentelemetry.sdk.trace.export",
    "urllib3",
)


class Collector:
    """Knows whether the last export succeeded; the exporters of one process share it. Of any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent: set[str] = set()  # signals whose last export failed

    @property
    def silent(self) -> bool:
        """Whether it did not take what it was sent last."""
        return bool(self._silent)

    def heard(self, signal: str, success: bool, reason: str | None = None) -> None:
        """An export of traces or metrics succeeded or failed for good, for a reason if one is known."""
        with self._lock:
            was_silent = bool(self._silent)
            (self._silent.discard if success else self._silent.add)(signal)
            is_silent = bool(self._silent)
        if is_silent and not was_silent:
            logger.warning(
                "telemetry cannot be exported to %s (%s: %s): what is not accepted in time is dropped, answers go on. "
                "This is said once; see OTEL_EXPORTER_OTLP_ENDPOINT",
                _without_secrets(_endpoint(signal)),
                signal,
                _without_secrets(reason or "no reason given"),
            )
        elif was_silent and not is_silent:
            logger.info("telemetry is exported again")


class _Listener(logging.Handler):
    """Keeps what the SDK's exporters say last, thread by thread: the words of an export that has failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        self._said.__dict__[record.levelname] = record.getMessage()

    def take(self) -> str | None:
        """What this thread's exporter has said since it was asked last: why it gave up, and why it had to try again,
        as only the latter may hold the cause."""
        said = self._said.__dict__
        words = [words for level in ("ERROR", "WARNING") if (words := said.pop(level, None))]
        return " ".join(words) or None


_listener = _Listener()


def quieten() -> None:
    """Take the SDK's exporters' words from the log; of an outage the first failure's are told. After they were made:
    what they say of variables is heard. Safe to call again."""
    for name in _TALKATIVE:
        talker = logging.getLogger(name)
        talker.propagate = False
        talker.addHandler(_listener)


def _endpoint(signal: str) -> str:
    own = value(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return own or value("OTEL_EXPORTER_OTLP_ENDPOINT") or "its exporter's default endpoint"


def _without_secrets(words: str) -> str:
    """In one line, without what is sent as headers, and without a password in an address."""
    for secret in header_secrets():
        words = words.replace(secret, "***")
    words = re.sub(r"[^/@\s]+@", "***@", " ".join(words.split()))
    return words if len(words) <= _REASON_LENGTH else words[: _REASON_LENGTH - 3] + "..."


class TracedExporter(SpanExporter):
    """Another exporter of spans that tells a Collector how it went."""

    def __init__(self, inner: SpanExporter, collector: Collector) -> None:
        self._inner = inner
        self._collector = collector

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        _listener.take()  # what is left of another export
        reason = None
        try:
            result = self._inner.export(spans)
        except Exception as error:
            logger.debug("an exporter of spans raised", exc_info=True)
            result, reason = SpanExportResult.FAILURE, f"{type(error).__name__}: {error}"
        self._collector.heard("traces", result is SpanExportResult.SUCCESS, _listener.take() or reason)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._inner.force_flush(timeout_millis)


class MeteredExporter(MetricExporter):
    """Another exporter of metrics that tells a Collector how it went."""

    def __init__(self, inner: MetricExporter, collector: Collector) -> None:
        # The reader asks its exporter how it wants figures to be; there is no public way to hand that on.
        super().__init__(inner._preferred_temporality, inner._preferred_aggregation)
        self._inner = inner
        self._collector = collector

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        _listener.take()
        reason = None
        try:
            result = self._inner.export(metrics_data, timeout_millis, **kwargs)
        except Exception as error:
            logger.debug("an exporter of metrics raised", exc_info=True)
            result, reason = MetricExportResult.FAILURE, f"{type(error).__name__}: {error}"
        self._collector.heard("metrics", result is MetricExportResult.SUCCESS, _listener.take() or reason)
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._inner.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._inner.shutdown(timeout_millis, **kwargs)
