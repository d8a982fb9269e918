"""An OTLP collector that drops what it receives, in a process of its own: `python -m benchmarks.otlp_sink` prints its
address and ends when its input is closed."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from subprocess import PIPE, Popen
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from benchmarks.errors import BenchError


class _Traces(TraceServiceServicer):
    def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:  # noqa: N802 - the protocol's own name
        return ExportTraceServiceResponse()


class _Metrics(MetricsServiceServicer):
    def Export(self, request: Any, context: Any) -> ExportMetricsServiceResponse:  # noqa: N802
        return ExportMetricsServiceResponse()


@contextmanager
def sink() -> Iterator[str]:
    """The address of one that runs meanwhile."""
    with Popen([sys.executable, "-m", "benchmarks.otlp_sink"], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise BenchError("the collector did not start")
        yield address


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(_Traces(), server)  # type: ignore[no-untyped-call]
    add_MetricsServiceServicer_to_server(_Metrics(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"http://127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
