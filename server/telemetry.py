"""Telemetry: the engine's figures as OpenTelemetry metrics, read by Prometheus from /metrics.

Every instrument of the process is declared here, through the SDK's meter provider, so that other readers (an OTLP
exporter) and spans can join through the same module. It observes the engine and is called on the event loop between
rounds: it only adds numbers. Labels come from small closed sets, never from what a client wrote, so the number of
series is bounded. Instruments count what was *delivered*: a draft behind an end token is in no counter but
`draft_tokens`.
"""

from functools import partial

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from core.round import RoundResult
from core.sequence import GenerationRequest
from scheduler.events import FinishedEvent
from scheduler.stats import EngineStats

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
_PHASE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LENGTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0)
_BUCKETS = {
    "gen_ai.server.request.duration": _SECONDS,
    "gen_ai.server.time_to_first_token": _SECONDS,
    "gen_ai.server.time_per_output_token": _TOKEN_SECONDS,
    "slipstream.speculation.acceptance_length": _LENGTHS,
    "slipstream.round.phase.duration": _PHASE_SECONDS,
}


class Telemetry:
    """Implements scheduler.observer.EngineObserver. One per application; give the same one to AsyncEngine.

    Nothing is recorded until `begin()`, which the application calls once it serves, so that its warm-up request
    does not show in anybody's figures.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(registry=self._registry, scope_info_enabled=False)
        self._provider = MeterProvider(
            metric_readers=[reader],
            resource=Resource.create({"service.name": "slipstream"}),
            views=[
                View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(boundaries))
                for name, boundaries in _BUCKETS.items()
            ],
            shutdown_on_exit=False,
        )
        self._recording = False
        self._stats: EngineStats | None = None
        self._declare_counters()
        self._declare_histograms()
        self._declare_gauges()

    def _declare_counters(self) -> None:
        counter = self._provider.get_meter("slipstream").create_counter
        self._requests = counter("slipstream_requests", description="Finished sequences, by finish reason")
        self._prompt = counter("slipstream_prompt_tokens", description="Prompt tokens of finished sequences")
        self._generated = counter("slipstream_generated_tokens", description="Tokens delivered to finished sequences")
        self._cached = counter("slipstream_prefix_cache_hits", description="Prompt positions found in the prefix cache")
        self._preemptions = counter("slipstream_preemptions", description="Sequences sent back to the waiting room")
        self._rounds = counter("slipstream_speculation_rounds", description="Verification rounds of sequences")
        self._drafts = counter("slipstream_speculation_draft_tokens", description="Tokens proposed by drafters")
        self._accepted = counter("slipstream_speculation_accepted_tokens", description="Delivered draft tokens")
        self._loosened = counter("slipstream_speculation_loosened_tokens", description="Of them, not the target's own")
        self._bonus = counter("slipstream_speculation_bonus_tokens", description="Tokens after fully accepted blocks")

    def _declare_histograms(self) -> None:
        histogram = self._provider.get_meter("slipstream").create_histogram
        self._duration = histogram("gen_ai.server.request.duration", unit="s", description="Submission to last token")
        self._first_token = histogram(
            "gen_ai.server.time_to_first_token", unit="s", description="Submission to first token"
        )
        self._per_token = histogram(
            "gen_ai.server.time_per_output_token", unit="s", description="Mean time of a token after the first"
        )
        self._length = histogram(
            "slipstream.speculation.acceptance_length", description="Tokens per verification round, mean of a sequence"
        )
        self._phases = histogram(
            "slipstream.round.phase.duration", unit="s", description="Wall time of a round's phases"
        )

    def _declare_gauges(self) -> None:
        gauges = {
            "slipstream_requests_running": ("running", "Sequences that hold KV blocks"),
            "slipstream_requests_waiting": ("waiting", "Sequences in the waiting room"),
            "slipstream_kv_blocks_used": ("blocks_used", "KV blocks referenced by running sequences"),
            "slipstream_kv_blocks_cached": ("blocks_cached", "KV blocks registered in the prefix cache"),
            "slipstream_kv_blocks_total": ("blocks_total", "KV blocks"),
        }
        meter = self._provider.get_meter("slipstream")
        for name, (field, description) in gauges.items():
            meter.create_observable_gauge(name, callbacks=[partial(self._gauge, field)], description=description)

    def _gauge(self, field: str, _options: CallbackOptions) -> list[Observation]:
        return [] if self._stats is None else [Observation(getattr(self._stats, field))]

    def begin(self) -> None:
        """Record from now on."""
        self._recording = True

    def exposition(self, stats: EngineStats | None) -> tuple[bytes, str]:
        """Everything in Prometheus' text format, and its content type. stats: the gauges of this moment."""
        self._stats = stats
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def shutdown(self) -> None:
        """Hand what is left to the readers and stop; once, at the end of the application's life."""
        self._provider.shutdown()

    # EngineObserver

    def on_submit(self, request: GenerationRequest) -> None:
        """A submission alone moves no counter: its figures are added when it finishes."""

    def on_round(self, result: RoundResult, stats: EngineStats) -> None:
        if not self._recording:
            return
        phases = {"draft": result.draft_seconds, "verify": result.forward_seconds, "host": result.host_seconds}
        for phase, seconds in phases.items():
            self._phases.record(seconds, {"phase": phase})

    def on_first_token(self, request: GenerationRequest, seconds: float) -> None:
        if self._recording:
            self._first_token.record(seconds, {"verifier": request.verifier.type})

    def on_preemption(self, request: GenerationRequest) -> None:
        if self._recording:
            self._preemptions.add(1)

    def on_finish(self, request: GenerationRequest, event: FinishedEvent) -> None:
        if not self._recording:
            return
        verifier = {"verifier": request.verifier.type}
        self._requests.add(1, {**verifier, "drafter": request.drafter, "finish_reason": event.reason.value})
        self._prompt.add(event.prompt_tokens)
        self._cached.add(event.cached_prompt_tokens)
        self._generated.add(event.completion_tokens, verifier)
        counters = event.counters
        self._rounds.add(counters.rounds, verifier)
        self._drafts.add(counters.draft_tokens, verifier)
        self._accepted.add(counters.accepted_tokens, verifier)
        self._bonus.add(counters.bonus_tokens, verifier)
        for rule, tokens in counters.loosened.items():
            self._loosened.add(tokens, {"rule": rule.value})
        if counters.mean_accepted_length is not None:
            self._length.record(counters.mean_accepted_length, verifier)
        timings = event.timings
        self._duration.record(timings.total_seconds, verifier)
        if timings.time_to_first_token is not None and event.completion_tokens > 1:
            decoding = timings.total_seconds - timings.time_to_first_token
            self._per_token.record(decoding / (event.completion_tokens - 1), verifier)
