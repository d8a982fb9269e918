"""A collector in the test's own process: OTLP's gRPC services for traces and metrics, keeping what they receive."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as plain values."""
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@dataclass
class Received:
    """spans: all so far. metrics: the newest state of each, by name."""

    spans: list[Span] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    resources: list[dict[str, Any]] = field(default_factory=list)

    def roots(self) -> list[Span]:
        return [span for span in self.spans if span.kind == Span.SPAN_KIND_SERVER]

    def children(self, root: Span) -> list[Span]:
        return [span for span in self.spans if span.parent_span_id == root.span_id]

    def sums(self, name: str) -> dict[frozenset[tuple[str, Any]], float]:
        """A counter's or gauge's points by their labels."""
        metric = self.metrics[name]
        points = metric.sum.data_points if metric.HasField("sum") else metric.gauge.data_points
        return {frozenset(values(point.attributes).items()): point.as_int or point.as_double for point in points}

    def total(self, name: str, **labels: str) -> float:
        return sum(value for found, value in self.sums(name).items() if labels.items() <= dict(found).items())

    def histogram(self, name: str) -> list[tuple[Mapping[str, Any], int, float]]:
        """Labels, count and sum of each of its points."""
        points = self.metrics[name].histogram.data_points
        return [(values(point.attributes), point.count, point.sum) for point in points]


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, received: Received) -> None:
        self._received = received

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        for resource in request.resource_spans:
            self._received.resources.append(values(resource.resource.attributes))
            for scope in resource.scope_spans:
                self._received.spans.extend(scope.spans)
        return trace_service.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, received: Received) -> None:
        self._received = received

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        for resource in request.resource_metrics:
            self._received.resources.append(values(resource.resource.attributes))
            for scope in resource.scope_metrics:
                self._received.metrics |= {metric.name: metric for metric in scope.metrics}
        return metrics_service.ExportMetricsServiceResponse()


@contextmanager
def collecting() -> Iterator[tuple[str, Received]]:
    """The address of a collector, and what it has received."""
    received = Received()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_grpc.add_TraceServiceServicer_to_server(_Traces(received), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(received), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", received
    finally:
        server.stop(None).wait()


def seconds(nanoseconds: int) -> float:
    return nanoseconds / 1e9


def just_now(nanoseconds: int) -> bool:
    return abs(time.time() - seconds(nanoseconds)) < 60
