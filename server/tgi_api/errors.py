"""Errors in TGI's shape, {"error": message, "error_type": kind}: whole, and inside a stream.

The status is what it is in OpenAI's dialect, so 400 where TGI itself answers 422: clients tell errors by their kind.
What is refused before a route is reached (401, 413) has OpenAI's shape everywhere.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from server.errors import ApiError, internal
from server.streaming import Chunks, data_line

logger = logging.getLogger(__name__)
Handler = Callable[[Any, Request], Awaitable[Response]]
_KINDS = {429: "overloaded", 503: "overloaded", 500: "generation"}


def error_body(error: ApiError) -> dict[str, str]:
    return {"error": error.message, "error_type": _KINDS.get(error.status, "validation")}


def tgi_errors(handler: Handler) -> Handler:
    """A handler method whose errors are answered in TGI's shape."""

    @wraps(handler)
    async def handle(self: Any, request: Request) -> Response:
        try:
            return await handler(self, request)
        except ApiError as error:
            return JSONResponse(error_body(error), status_code=error.status, headers=error.headers)
        except Exception:
            logger.exception("unhandled error on %s", request.url.path[:200])
            return JSONResponse(error_body(internal()), status_code=500)

    return handle


async def token_events(chunks: Chunks) -> AsyncIterator[bytes]:
    """A stream's events. It just ends, as TGI's does; an error is its last event."""
    try:
        async for chunk in chunks:
            yield data_line(chunk) + b"\n"
    except ApiError as error:
        yield data_line(error_body(error)) + b"\n"
    except Exception:
        logger.exception("a stream failed")
        yield data_line(error_body(internal())) + b"\n"
