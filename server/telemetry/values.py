"""Whether the values of OpenTelemetry's variables mean anything. The SDK takes a default for some that do not, with a
traceback in the log, and raises for others when the weights have long been fetched; here they are refused before.

No sentence repeats a header or a certificate's content: a key may stand there in the wrong form.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

_SIGNALS = ("", "TRACES_", "METRICS_")
_MILLISECONDS = ("OTEL_METRIC_EXPORT_INTERVAL", "OTEL_METRIC_EXPORT_TIMEOUT")
_WHOLE = (
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
)
_QUEUE, _BATCH = "2048", "512"  # the SDK's defaults
_COMPRESSIONS = ("gzip", "deflate", "none")
_KEY_LENGTH = 6  # nobody's key is shorter
_SAMPLERS = ("always_on", "always_off", "traceidratio")
# A token of HTTP, and what OpenTelemetry allows as its value, where blanks need not be encoded.
_HEADER = re.compile(r"""\s*[\w!#$%&'*+.^`|~-]+\s*=[ !#-+\--:<-\[\]-~]*""", re.ASCII)


def value_problems() -> Iterator[str]:
    """What is wrong, one sentence each."""
    numbers = [f"OTEL_EXPORTER_OTLP_{signal}TIMEOUT" for signal in _SIGNALS]
    for name in (*numbers, *_MILLISECONDS):
        if (given := value(name)) and not _is_positive(given):
            yield f"{name} = {given} is not a number above 0"
    wrong = [name for name in _WHOLE if (given := value(name)) and not (given.isdecimal() and int(given) > 0)]
    yield from (f"{name} = {value(name)} is not a whole number above 0" for name in wrong)
    queue, batch = value("OTEL_BSP_MAX_QUEUE_SIZE") or _QUEUE, value("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") or _BATCH
    if not wrong and int(batch) > int(queue):
        yield f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE = {batch} exceeds OTEL_BSP_MAX_QUEUE_SIZE = {queue}"
    yield from _sampler_problems()
    for signal in _SIGNALS:
        yield from _otlp_problems(f"OTEL_EXPORTER_OTLP_{signal}")


def value(name: str) -> str:
    """Of a variable. Blank counts as unset, as OpenTelemetry has it."""
    return os.environ.get(name, "").strip()


def header_secrets() -> list[str]:
    """What is sent as headers and may be a key, none of which belongs into a log: longer ones first."""
    given = ",".join(value(f"OTEL_EXPORTER_OTLP_{signal}HEADERS") for signal in _SIGNALS)
    values = [unquote(part.partition("=")[2]).strip() for part in given.split(",")]
    words = {word for one in values for word in (one, *one.split()) if len(word) >= _KEY_LENGTH}
    return sorted(words, key=len, reverse=True)


def _is_positive(given: str) -> bool:
    try:
        return float(given) > 0
    except ValueError:
        return False


def _sampler_problems() -> Iterator[str]:
    given, share = value("OTEL_TRACES_SAMPLER"), value("OTEL_TRACES_SAMPLER_ARG")
    base = given.lower().removeprefix("parentbased_")
    if given and base not in _SAMPLERS:
        known = ", ".join((*_SAMPLERS, *(f"parentbased_{name}" for name in _SAMPLERS)))
        yield f"OTEL_TRACES_SAMPLER = {given} is not known; allowed: {known}"
    elif base == "traceidratio" and share and not (share == "0" or (_is_positive(share) and float(share) <= 1)):
        yield f"OTEL_TRACES_SAMPLER_ARG = {share} is not a share from 0 to 1"


def _otlp_problems(prefix: str) -> Iterator[str]:
    compression = value(f"{prefix}COMPRESSION")
    if compression and compression.lower() not in _COMPRESSIONS:
        yield f"{prefix}COMPRESSION = {compression} is not known; allowed: {', '.join(_COMPRESSIONS)}"
    for name in (f"{prefix}CERTIFICATE", f"{prefix}CLIENT_KEY", f"{prefix}CLIENT_CERTIFICATE"):
        if (path := value(name)) and not Path(path).is_file():
            yield f"{name} = {path} is not a file"
    headers = [part for part in value(f"{prefix}HEADERS").split(",") if part.strip()]
    if not all(_HEADER.fullmatch(part) for part in headers):
        yield f"{prefix}HEADERS is not of the form name=value,name=value with values URL-encoded"
