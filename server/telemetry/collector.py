"""Collector: whoever receives what is exported, and exporters that report its silence once.

The SDK's exporters log every failed attempt and every retry. A collector that is down is no fault of this server, its
answers go on, and one line at the beginning and one at the end of the outage say all there is to know.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger(__name__)

# Whatever they say while exporting is said here, better.
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

    def heard(self, signal: str, success: bool) -> None:
        """An export of traces or metrics succeeded or failed for good."""
        with self._lock:
            was_silent = bool(self._silent)
            (self._silent.discard if success else self._silent.add)(signal)
            is_silent = bool(self._silent)
        if is_silent and not was_silent:
            logger.warning(
                "telemetry cannot be exported (%s failed): what is not accepted in time is dropped, answers go on. "
                "This is said once; see OTEL_EXPORTER_OTLP_ENDPOINT",
                signal,
            )
        elif was_silent and not is_silent:
            logger.info("telemetry is exported again")


def quieten() -> None:
    """Leave only severe words to the SDK's exporters. After they were made: what they say of variables is heard."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)


class TracedExporter(SpanExporter):
    """Another exporter of spans that tells a Collector how it went."""

    def __init__(self, inner: SpanExporter, collector: Collector) -> None:
        self._inner = inner
        self._collector = collector

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._inner.export(spans)
        except Exception:
            logger.debug("an exporter of spans raised", exc_info=True)
            result = SpanExportResult.FAILURE
        self._collector.heard("traces", result is SpanExportResult.SUCCESS)
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
        try:
            result = self._inner.export(metrics_data, timeout_millis, **kwargs)
        except Exception:
            logger.debug("an exporter of metrics raised", exc_info=True)
            result = MetricExportResult.FAILURE
        self._collector.heard("metrics", result is MetricExportResult.SUCCESS)
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._inner.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._inner.shutdown(timeout_millis, **kwargs)
