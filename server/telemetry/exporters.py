"""The exporters that variables.py names, loaded, and wrapped so that a collector's silence is said once."""

import logging
from importlib.metadata import EntryPoint
from typing import Any

from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from server.telemetry.collector import Collector, MeteredExporter, TracedExporter
from server.telemetry.variables import TelemetryError, exporters, problems

# It would log headers that it cannot read, with the key that stands in them.
logging.getLogger("opentelemetry.util.re").setLevel(logging.CRITICAL)


def obstacles() -> list[str]:
    """What is wrong with the variables, one sentence each, found by making every exporter once."""
    if wrong := problems():
        return wrong
    for entry in [*exporters("TRACES"), *exporters("METRICS")]:
        try:
            _make(entry).shutdown()
        except TelemetryError as error:
            wrong.append(str(error))
    return wrong


def span_processors(collector: Collector) -> list[SpanProcessor]:
    """One for each exporter of spans that is asked for. TelemetryError for one that cannot be had."""
    return [BatchSpanProcessor(TracedExporter(_make(entry), collector)) for entry in exporters("TRACES")]


def metric_readers(collector: Collector) -> list[MetricReader]:
    """One for each exporter of metrics that is asked for. TelemetryError for one that cannot be had."""
    made = [_make(entry) for entry in exporters("METRICS")]
    return [
        one if isinstance(one, MetricReader) else PeriodicExportingMetricReader(MeteredExporter(one, collector))
        for one in made
    ]


def _make(entry: EntryPoint) -> Any:
    try:
        return entry.load()()
    except Exception as error:
        first_line = str(error).partition("\n")[0] or type(error).__name__
        raise TelemetryError(f"the exporter {entry.name} cannot be made: {first_line}") from error
