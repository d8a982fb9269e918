"""Errors in OpenAI's shape, everywhere: {"error": {"message", "type", "param", "code"}}.

A client's mistake is a 4xx that names the parameter and what is allowed, never a 5xx, which SDKs retry, and never a
422. What goes wrong inside is logged with its traceback and told to nobody else.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

_MAX_MESSAGE = 600
_MAX_PARAM = 100
_MAX_SHOWN = 80


class ApiError(Exception):
    """An answer other than 200. retry_after: seconds, sent as a header."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = shorten(message, _MAX_MESSAGE)
        self.type = type
        self.param = None if param is None else shorten(param, _MAX_PARAM)
        self.code = code
        self.headers = dict(headers or {})
        if retry_after is not None:
            # Whole seconds, rounded up: HTTP allows no fraction, and 0 invites a stampede.
            self.headers["Retry-After"] = str(max(1, int(-(-retry_after // 1))))

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: a request that cannot be served as it stands."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, what: str) -> ApiError:
    """400: part of OpenAI's API that this server does not offer; refused rather than ignored."""
    return ApiError(400, f"{what} not supported.", param=param, code="unsupported_parameter")


def model_not_found(name: str, served: str) -> ApiError:
    message = f"The model {shorten(repr(name), _MAX_SHOWN)} does not exist. This server has {served!r}."
    return ApiError(404, message, param="model", code="model_not_found")


def context_exceeded(max_context: int, tokens: int, exact: bool, param: str, longest: int | None = None) -> ApiError:
    """The sentence that LiteLLM and agents look for, and the code that SDK users look for.

    exact: whether `tokens` is the prompt's length, not a lower bound. longest: of the prompts that can be answered.
    """
    count = f"{tokens}" if exact else f"at least {tokens}"
    message = (
        f"This model's maximum context length is {max_context} tokens. However, your prompt has {count} tokens, "
        f"and the longest that can be answered here has {max_context - 1 if longest is None else longest}. "
        "Please reduce its length."
    )
    return ApiError(400, message, param=param, code="context_length_exceeded")


def unavailable(message: str, retry_after: float) -> ApiError:
    """503: not now; the client should come back."""
    return ApiError(503, message, type="server_error", code="service_unavailable", retry_after=retry_after)


def internal() -> ApiError:
    return ApiError(500, "The server had an error while processing your request.", type="server_error")


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters, without control characters: errors may repeat what a client sent."""
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: limit + 1])
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


def from_validation(error: ValidationError) -> ApiError:
    """The first of pydantic's findings as one sentence: which parameter, what is allowed, what was given."""
    found = _most_specific(error.errors(include_url=False, include_context=True))
    param = ".".join(str(part) for part in _path(found["loc"])) or None
    if found["type"] == "missing":
        return invalid(
            f"Missing required parameter: '{shorten(param or '', _MAX_PARAM)}'.", param, "missing_required_parameter"
        )
    reason = _reason(found)
    given = _show(found.get("input"))
    name = f"'{shorten(param, _MAX_PARAM)}'" if param else "the request"
    return invalid(f"Invalid value for {name}: {reason}{given}.", param, "invalid_value")


def _most_specific(errors: Sequence[Any]) -> Any:
    """Of a union's branches pydantic reports each; the deepest is the one that the client meant."""
    return max(errors, key=lambda found: len(_path(found["loc"])))


def _path(loc: Sequence[int | str]) -> list[int | str]:
    """The location without pydantic's own names of union branches and validators."""
    internal_name = ("function-", "list[", "dict[", "tagged-union", "constrained-", "nullable[", "lax-or-strict")
    branches = {"str", "int", "float", "bool", "list", "dict", "none"}
    path: list[int | str] = []
    for part in loc:
        if isinstance(part, str) and (part.startswith(internal_name) or part in branches):
            continue
        path.append(part)
    return path


def _reason(found: Any) -> str:
    if found["type"] == "value_error":
        return str(found["ctx"]["error"])
    message = str(found["msg"])
    return message[:1].lower() + message[1:]


def _show(value: Any) -> str:
    """The offending value, if it is a short scalar."""
    if isinstance(value, str):
        return f", got {shorten(repr(value), _MAX_SHOWN)}"
    if isinstance(value, bool) or value is None:
        return f", got {str(value).lower() if value is not None else 'null'}"
    if isinstance(value, int | float) and abs(value) < 1e30:
        return f", got {value}"
    return ""


_MESSAGES = {
    404: "Unknown request URL. Please check the path.",
    405: "This method is not allowed for this URL.",
    413: "The request body is too large.",
}


async def handle_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """The framework's own 404, 405 and so on."""
    status = getattr(error, "status_code", 500)
    message = _MESSAGES.get(status, "The request could not be processed.")
    code = "unknown_url" if status == 404 else None
    headers = dict(getattr(error, "headers", None) or {})
    if status == 405 and (methods := _methods_at(request)):  # none where other applications are mounted, which say it
        headers["Allow"] = ", ".join(sorted(methods))
    return ApiError(status, message, code=code, headers=headers).response()


def _methods_at(request: Request) -> set[str]:
    """What the URL takes, of whichever route; the framework names only those of the first that matches."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    matching = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = set().union(*matching)
    return methods | {"HEAD"} if "GET" in methods else methods


class ErrorBoundary:
    """ASGI middleware around the routes: whatever escapes them is logged, and answered with a plain 500.

    It sits inside CORS and request ids, unlike the framework's own handler, so that a browser sees the error too.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watch(message: Any) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception as error:
            if started:  # too late for another answer; the server closes the connection
                raise
            if isinstance(error, ApiError):
                await error.response()(scope, receive, send)
                return
            logger.exception("unhandled error on %s", scope["path"][:200])
            await internal().response()(scope, receive, send)
