"""Telemetry: one per application. It hears from the engine as its observer and from HTTP through RequestWatches, and
tells Prometheus (/metrics) and whoever else is asked for (exporters.py).

It only adds numbers, on the event loop between rounds. Without an exporter of spans no span is made.
"""

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Mapping

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from core.round import RoundResult
from core.sequence import GenerationRequest
from scheduler.events import FinishedEvent
from server.logs import set_trace
from server.telemetry import catalogue, exporters, variables
from server.telemetry.answer_figures import AnswerFigures
from server.telemetry.collector import Collector, quieten
from server.telemetry.gauges import Gauges, PairsSource, StatsSource
from server.telemetry.instruments import Instruments
from server.telemetry.request_span import RequestSpan
from server.telemetry.request_watch import RequestWatch
from server.telemetry.tally import Tally
from server.version import VERSION

logger = logging.getLogger(__name__)
_DRAFT, _VERIFY, _HOST, _SCHEDULE = ({"phase": phase} for phase in ("draft", "verify", "host", "schedule"))
SHUTDOWN_SECONDS = 3.0  # for the last export; a collector that hangs must not hold up the end
SILENT_SECONDS = 0.5  # nor one that is known to be gone


class Telemetry:
    """Implements scheduler.observer.EngineObserver. Give the same one to AsyncEngine and create_app.

    Nothing is recorded until `begin()`, which the application calls once it serves, so that its warm-up request
    does not show in anybody's figures. instruments: for other parts of the server that have figures to tell.
    """

    def __init__(self) -> None:
        """TelemetryError if a variable asks for what there is not, or means nothing."""
        if wrong := variables.problems():
            raise variables.TelemetryError("\n".join(wrong))
        self._registry = CollectorRegistry()
        self._one_exposition, self._one_scrape = threading.Lock(), asyncio.Lock()
        self._collector, resource = Collector(), _resource()
        spans, readers = exporters.span_processors(self._collector), exporters.metric_readers(self._collector)
        if spans or readers:
            quieten()
        scrape = PrometheusMetricReader(registry=self._registry, scope_info_enabled=False)
        self._meters = MeterProvider([scrape, *readers], resource, shutdown_on_exit=False)
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False) if spans else None
        self._tracer = None if self._tracers is None else self._tracers.get_tracer("slipstream", VERSION)
        if self._tracers is not None:
            for processor in spans:
                self._tracers.add_span_processor(processor)
        self._recording, self._model = False, ""
        self._watches: dict[str, RequestWatch] = {}  # by request_id of their sequences
        self.instruments = Instruments(self._meters.get_meter("slipstream", VERSION))
        self._tally = Tally()
        self._tally.declare(self.instruments)
        self._figures = AnswerFigures(self.instruments)
        self._phases = self.instruments.histogram(catalogue.PHASE_DURATION)
        self._gauges = Gauges(self.instruments)

    def follow(self, model: str, stats: StatsSource, memory_pairs: PairsSource) -> None:
        """What the application serves and where its gauges come from, for as long as it lives."""
        self._model = model
        self._gauges.follow(stats, memory_pairs)

    def begin(self) -> None:
        """Record from now on."""
        self._recording = True

    def exposition(self) -> tuple[bytes, str]:
        """Everything in Prometheus' text format, and its content type; off the event loop."""
        with self._one_exposition:  # the reader keeps what it has collected until it is written down
            return generate_latest(self._registry), CONTENT_TYPE_LATEST

    async def scrape(self) -> tuple[bytes, str]:
        """The same from the event loop, which does not wait for it: with many series it takes tens of milliseconds.
        However many ask, they take up one thread."""
        async with self._one_scrape:
            return await asyncio.to_thread(self.exposition)

    def watch(self, headers: Mapping[str, str], operation: str, streamed: bool) -> RequestWatch:
        """Of a request that has just arrived. headers: its trace goes on in the request's span, if spans are made."""
        span = None
        if self._tracer is not None:
            try:
                span = RequestSpan(self._tracer, headers, operation, self._model, time.time_ns())
                set_trace(span.context)
            except Exception:
                logger.exception("a request has no span")
        return RequestWatch(self._figures, self._watches, operation, self._model, streamed, span)

    def flush_spans(self) -> None:
        """Send now what spans there are; off the event loop."""
        if self._tracers is not None:
            self._tracers.force_flush()

    def flush_metrics(self) -> None:
        """Send the metrics now; off the event loop."""
        self._meters.force_flush()

    def shutdown(self) -> None:
        """Send what is left and stop; once, at the end of the application's life, and off the event loop: it may take
        SHUTDOWN_SECONDS."""
        ending = threading.Thread(target=self._shutdown, name="telemetry-shutdown", daemon=True)
        ending.start()
        ending.join(SILENT_SECONDS if self._collector.silent else SHUTDOWN_SECONDS)

    def _shutdown(self) -> None:
        if self._tracers is not None:
            self._tracers.shutdown()
        self._meters.shutdown(timeout_millis=1000 * SHUTDOWN_SECONDS)

    # EngineObserver

    def on_round(self, result: RoundResult, schedule_seconds: float) -> None:
        if not self._recording:
            return
        self._tally.add(result.items)
        if result.drafting:
            self._phases.record(result.draft_seconds, _DRAFT)
        if result.items:
            self._phases.record(result.forward_seconds, _VERIFY)
            self._phases.record(result.host_seconds, _HOST)
        self._phases.record(schedule_seconds, _SCHEDULE)

    def on_first_token(self, request: GenerationRequest, seconds: float) -> None:
        if (watch := self._watches.get(request.request_id)) is not None:
            watch.first_token()

    def on_finish(self, request: GenerationRequest, event: FinishedEvent) -> None:
        if (watch := self._watches.pop(request.request_id, None)) is not None:
            watch.finished(request, event)
        if self._recording:
            self._figures.sequence_ended(request.verifier.type, request.drafter, event)


def _resource() -> Resource:
    """Who speaks. What the environment says of it (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) comes first."""
    own = {"service.name": "slipstream", "service.version": VERSION, "service.instance.id": str(uuid.uuid4())}
    return Resource.create({**own, **OTELResourceDetector().detect().attributes})
