"""Logs: one line an event on stderr, as text or as JSON, with the request and the trace it belongs to where known.

A request's ids are kept in a context variable, one object a request, which the tasks and threads that serve it share.
No line holds an API key or what a client wrote; what libraries would say of either is below what they may log.
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

LogFormat = Literal["text", "json"]
_FIELDS = ("request_id", "trace_id", "span_id")
# They speak up only when something is wrong: their request lines would repeat ours, and sse_starlette's hold answers.
_QUIET = (
    "httpx",
    "httpx2",
    "httpcore",
    "huggingface_hub",
    "transformers",
    "uvicorn",
    "sse_starlette",
    "filelock",
    "asyncio",
    "grpc",
    "urllib3",
)

_about: ContextVar[dict[str, str] | None] = ContextVar("about", default=None)


@contextmanager
def of_request(request_id: str) -> Iterator[None]:
    """Whatever is logged within, in this task and those begun in it, belongs to this request."""
    token = _about.set({"request_id": request_id})
    try:
        yield
    finally:
        _about.reset(token)


def set_trace(context: "SpanContext") -> None:
    """The request's span, from now on; nothing outside of a request."""
    if (known := _about.get()) is not None:
        known["trace_id"], known["span_id"] = f"{context.trace_id:032x}", f"{context.span_id:016x}"


def about() -> dict[str, str]:
    """The ids of the request that this is running for, to be given as `extra` where something is logged later on."""
    return dict(_about.get() or {})


class _AddIds(logging.Filter):
    """Puts the ids of the request into each record, unless it was logged with others."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in about().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


class TextFormatter(logging.Formatter):
    """09:15:02 WARNING words [request_id=... trace_id=... span_id=...]"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        ids = " ".join(f"{name}={getattr(record, name)}" for name in _FIELDS if hasattr(record, name))
        return super().formatMessage(record) + (f" [{ids}]" if ids else "")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC, ISO 8601), level, logger, message, ids where known, exception if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_to_stderr(level: str, form: LogFormat) -> None:
    """Set up logging for the whole process, Python's warnings included. Safe to call again."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    handler.addFilter(_AddIds())
    root = logging.getLogger()
    for known in root.handlers[:]:
        if isinstance(known.formatter, TextFormatter | JsonFormatter):
            root.removeHandler(known)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(form == "json")
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("uvicorn", "uvicorn.error"):  # should anybody in this process have let uvicorn set up its own
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
