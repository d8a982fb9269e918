"""RequestSpan: the span of one request, of kind SERVER, and its children queue, prefill and decode.

Names and attributes follow OpenTelemetry's conventions for generative AI. They hold figures and settings, never what a
client wrote: no prompt, no stop string, no user, no key.
"""

from collections.abc import Mapping, Sequence

from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from core.provenance import FinishReason
from scheduler.events import FinishedEvent
from server.generation_plan import GenerationPlan
from server.telemetry import attributes

_W3C = TraceContextTextMapPropagator()
_NANOSECONDS = 1_000_000_000
_SERVER_ERROR = 500


class RequestSpan:
    """Times are seconds since the request's arrival."""

    def __init__(self, tracer: Tracer, headers: Mapping[str, str], operation: str, model: str, began: int) -> None:
        """headers: of the request, whose trace goes on. began: Unix time in nanoseconds."""
        self._tracer = tracer
        self._began = began
        known = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        self._span: Span = tracer.start_span(
            f"{operation} {model}",
            context=_W3C.extract(known),
            kind=SpanKind.SERVER,
            attributes={
                attributes.OPERATION_NAME: operation,
                attributes.PROVIDER_NAME: attributes.PROVIDER,
                attributes.REQUEST_MODEL: model,
            },
            start_time=began,
        )

    @property
    def context(self) -> SpanContext:
        return self._span.get_span_context()

    def describe(self, plan: GenerationPlan, streamed: bool) -> None:
        """What is asked for."""
        request, span = plan.requests[0], self._span
        sampling = request.sampling
        span.set_attributes(
            {
                attributes.REQUEST_MAX_TOKENS: request.max_tokens,
                attributes.REQUEST_TEMPERATURE: sampling.temperature,
                attributes.REQUEST_TOP_P: sampling.top_p,
                attributes.REQUEST_FREQUENCY_PENALTY: sampling.frequency_penalty,
                attributes.REQUEST_PRESENCE_PENALTY: sampling.presence_penalty,
                attributes.REQUEST_STREAM: streamed,
                attributes.DRAFT_LIMIT: request.num_draft_tokens,
                attributes.STRICT_PREFIX: request.strict_prefix,
            }
        )
        if sampling.top_k:
            span.set_attribute(attributes.REQUEST_TOP_K, sampling.top_k)
        if plan.choices_per_prompt != 1:
            span.set_attribute(attributes.REQUEST_CHOICES, plan.choices_per_prompt)

    def add_sequence(self, index: int, submitted: float, event: FinishedEvent) -> None:
        """The life of one sequence, which has ended: submitted seconds after the request's arrival."""
        timings = event.timings
        queued, ended = submitted + timings.queued_seconds, submitted + timings.total_seconds
        first = timings.time_to_first_token
        started = timings.queued_seconds < timings.total_seconds
        number: dict[str, AttributeValue] = {attributes.SEQUENCE: index}
        self._child("queue", submitted, queued, number)
        if started:
            read = {"slipstream.prompt.tokens": event.prompt_tokens}
            cached = {"slipstream.prefix_cache.hit.tokens": event.cached_prompt_tokens}
            self._child("prefill", queued, ended if first is None else submitted + first, number | read | cached)
        if first is not None:
            wrote = {"slipstream.generated.tokens": event.completion_tokens}
            self._child("decode", submitted + first, ended, number | wrote)
        for at in timings.preempted_at:
            self._span.add_event("preemption", number, self._at(submitted + at))
        if event.reason is FinishReason.ABORT:
            self._span.add_event("abort", number, self._at(ended))

    def _child(self, name: str, begin: float, end: float, about: Mapping[str, AttributeValue]) -> None:
        parent = set_span_in_context(self._span)
        child = self._tracer.start_span(name, context=parent, attributes=dict(about), start_time=self._at(begin))
        child.end(self._at(end))

    def add_answer(self, plan: GenerationPlan, events: Sequence[FinishedEvent], model: str) -> None:
        """What came of it; of each prompt only the first sequence says what the cache held, as in `usage`."""
        firsts = events[:: plan.candidates_per_prompt]
        self._span.set_attributes(
            {
                attributes.RESPONSE_ID: plan.answer_id,
                attributes.RESPONSE_MODEL: model,
                attributes.RESPONSE_FINISH_REASONS: [event.reason.value for event in events],
                attributes.USAGE_INPUT_TOKENS: plan.prompt_tokens,
                attributes.USAGE_CACHED_TOKENS: sum(event.cached_prompt_tokens for event in firsts),
            }
        )

    def add_report(self, report: Mapping[str, object], events: Sequence[FinishedEvent]) -> None:
        """What was delivered: the answer's tokens and its `speculation`, figure by figure; warnings are sentences, and
        stay in the answer."""
        self._span.set_attribute(attributes.USAGE_OUTPUT_TOKENS, sum(event.completion_tokens for event in events))
        for name, value in report.items():
            if isinstance(value, Mapping):
                for part, figure in value.items():
                    self._span.set_attribute(f"{attributes.SPECULATION}.{name}.{part}", figure)
            elif isinstance(value, str | int | float):
                self._span.set_attribute(f"{attributes.SPECULATION}.{name}", value)

    def end(self, seconds: float, error: str | None, status: int) -> None:
        """error: its type, if the answer failed; status: of HTTP, by which a client's own mistake is no error here."""
        if error is not None:
            self._span.set_attribute(attributes.ERROR_TYPE, error)
            if status >= _SERVER_ERROR:
                self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(self._at(seconds))

    def _at(self, seconds: float) -> int:
        return self._began + round(seconds * _NANOSECONDS)
