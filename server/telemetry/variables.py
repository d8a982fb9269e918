"""What is sent to whom, by OpenTelemetry's own variables (OTEL_*) and nothing else.

    OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER    otlp, console, none, or several; also any that is installed
    OTEL_EXPORTER_OTLP_ENDPOINT, ..._PROTOCOL      where to, and how: grpc (the default) or http/protobuf

Nothing is sent unless an exporter or an OTLP endpoint is named. The other variables are the SDK's business.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Literal

from server.telemetry.values import value, value_problems

Signal = Literal["TRACES", "METRICS"]
_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


class TelemetryError(Exception):
    """A variable asks for what there is not; the message says which."""


def problems() -> list[str]:
    """What is wrong with the variables, one sentence each; known before anything is loaded."""
    wrong, asked = [], False
    for signal in ("TRACES", "METRICS"):
        try:
            asked = bool(exporters(signal)) or asked
        except TelemetryError as error:
            wrong.append(str(error))
    return wrong or (list(value_problems()) if asked else [])


def exporters(signal: Signal) -> list[EntryPoint]:
    """The exporters that are asked for, not loaded yet. TelemetryError for one that is not known."""
    return [] if disabled() else [_find(signal, name) for name in _names(signal)]


def disabled() -> bool:
    """Whether OTEL_SDK_DISABLED switches everything off, /metrics included."""
    return value("OTEL_SDK_DISABLED").lower() == "true"


def _names(signal: Signal) -> list[str]:
    given = value(f"OTEL_{signal}_EXPORTER")
    if not given and (value("OTEL_EXPORTER_OTLP_ENDPOINT") or value(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")):
        given = "otlp"
    names = [name for part in given.split(",") if (name := part.strip())]
    # /metrics is always there, so there is nothing to be done for "prometheus".
    return [name for name in names if name not in ("none", "prometheus")]


def _find(signal: Signal, name: str) -> EntryPoint:
    known = {entry.name: entry for entry in entry_points(group=f"opentelemetry_{signal.lower()}_exporter")}
    wanted = _protocol(signal) if name == "otlp" else name
    if wanted not in known:
        allowed = ", ".join(sorted({"none", *known}))
        raise TelemetryError(f"OTEL_{signal}_EXPORTER = {name} is not known; allowed: {allowed}")
    return known[wanted]


def _protocol(signal: Signal) -> str:
    variable = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"
    if not value(variable):
        variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = value(variable) or "grpc"
    if protocol not in _PROTOCOLS:
        raise TelemetryError(f"{variable} = {protocol} is not supported; allowed: {', '.join(_PROTOCOLS)}")
    return _PROTOCOLS[protocol]
