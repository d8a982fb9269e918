"""OTEL_* variables choose what is sent; what they cannot mean is said before anything is loaded."""

import re

import pytest
from opentelemetry.util.re import parse_env_headers

from server.telemetry import variables
from server.telemetry.exporters import obstacles
from server.telemetry.telemetry import Telemetry
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


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "abc", "is not a number above 0"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "-1", "is not a number above 0"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0", "is not a number above 0"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "nan", "is not a number above 0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE = 512 exceeds OTEL_BSP_MAX_QUEUE_SIZE = 1"),
        ("OTEL_BSP_SCHEDULE_DELAY", "1.5", "is not a whole number above 0"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "many", "is not a whole number above 0"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "is not known; allowed: gzip, deflate, none"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem", "is not a file"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "is not known; allowed: always_on"),
    ],
)
def test_a_value_that_means_nothing_is_refused_in_one_sentence(
    name: str, given: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, given)
    assert variables.problems() == []  # nothing is sent, so nothing reads it
    monkeypatch.setenv(OTLP, "http://here:4317")
    [wrong] = variables.problems()
    assert sentence in wrong
    assert f"{name} = {given}" in wrong
    with pytest.raises(TelemetryError, match=re.escape(sentence)):
        Telemetry()


def test_a_share_of_traces_lies_between_0_and_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OTLP, "http://here:4317")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    for given, accepted in (("0", True), ("0.25", True), ("1", True), ("2", False), ("-1", False), ("some", False)):
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", given)
        assert (variables.problems() == []) == accepted, given


@pytest.mark.parametrize("given", ["authorization=Bearer%20abc", "a=1, b=2", "authorization=Bearer abc==", "x-key="])
def test_headers_of_the_right_form_pass(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OTLP, "http://here:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", given)
    assert variables.problems() == []
    assert len(parse_env_headers(given, liberal=True)) == given.count(",") + 1


@pytest.mark.parametrize("given", ["Authorization: Bearer sk-secret", "sk-secret", "a=1,sk-secret", 'a="sk-secret"'])
def test_headers_of_a_wrong_form_are_refused_and_never_shown(
    given: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(OTLP, "http://here:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", given)
    assert variables.problems() == [
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS is not of the form name=value,name=value with values URL-encoded"
    ]
    for entry in exporters("TRACES"):
        entry.load()().shutdown()  # what the SDK itself makes of it
    assert "secret" not in caplog.text


def test_what_only_an_exporter_can_know_is_found_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OTLP, "http://here:4317")
    assert obstacles() == []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "deflate")  # which gRPC's does not know
    assert len(obstacles()) == 2
    assert all("otlp_proto_grpc cannot be made" in wrong and "deflate" in wrong for wrong in obstacles())
