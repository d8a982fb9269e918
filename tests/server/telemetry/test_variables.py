"""OTEL_* variables choose what is sent; what they cannot mean is said before anything is loaded."""

import pytest

from server.telemetry import variables
from server.telemetry.variables import TelemetryError, exporters

OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)
    for name in (OTLP, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "traces", "metrics"),
    [
        ({}, [], []),
        ({OTLP: ""}, [], []),
        ({OTLP: "http://here:4317"}, ["otlp_proto_grpc"], ["otlp_proto_grpc"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://here:4317"}, ["otlp_proto_grpc"], []),
        (
            {OTLP: "http://here:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            1 * ["otlp_proto_http"],
            ["otlp_proto_http"],
        ),
        (
            {OTLP: "http://here", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            ["otlp_proto_http"],
            ["otlp_proto_grpc"],
        ),
        ({OTLP: "http://here:4317", "OTEL_METRICS_EXPORTER": "none"}, ["otlp_proto_grpc"], []),
        ({OTLP: "http://here:4317", "OTEL_METRICS_EXPORTER": "prometheus"}, ["otlp_proto_grpc"], []),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ["otlp_proto_grpc", "console"], []),
        ({OTLP: "http://here:4317", "OTEL_SDK_DISABLED": "TRUE"}, [], []),
    ],
)
def test_exporters_are_those_that_the_variables_name(
    given: dict[str, str], traces: list[str], metrics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert [entry.name for entry in exporters("TRACES")] == traces
    assert [entry.name for entry in exporters("METRICS")] == metrics
    assert variables.problems() == []


def test_an_unknown_exporter_is_refused_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkinn")
    with pytest.raises(TelemetryError, match=r"OTEL_TRACES_EXPORTER = zipkinn is not known; allowed: .*none, otlp"):
        exporters("TRACES")
    assert len(variables.problems()) == 1


def test_an_unknown_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OTLP, "http://here:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    assert variables.problems() == 2 * [
        "OTEL_EXPORTER_OTLP_PROTOCOL = http/json is not supported; allowed: grpc, http/protobuf"
    ]
