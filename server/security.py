"""Who may ask, and how much: API keys, request ids, body size and patience. Pure ASGI, before anything is parsed."""

import asyncio
import hashlib
import hmac
import re
import uuid
from collections.abc import Iterable
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError
from server.logs import of_request

PAGE_FILES = "/web"
_OPEN_PATHS = frozenset({"/health"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class RequestId:
    """Takes over a client's x-request-id if it is harmless, else makes one; every response carries it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id

        async def stamp(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        with of_request(request_id):
            await self.app(scope, receive, stamp)


class ApiKeys:
    """Refuses every request that lacks one of the keys, before its body is read; but for /health and the page.

    Keys are compared as digests, all of them, in constant time: neither their lengths nor which of them nearly
    matched shows in the time taken.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self.app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A preflight never carries a key; it reaches no handler that does anything.
        if scope["type"] == "http" and self._digests and not _is_open(scope):
            refusal = self._refuse(Headers(scope=scope).get("authorization", ""))
            if refusal is not None:
                await refusal.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _refuse(self, authorization: str) -> ApiError | None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return _unauthorized("You didn't provide an API key. Send it as 'Authorization: Bearer YOUR_KEY'.")
        given = _digest(token.strip().encode("latin-1", "replace"))
        known = False
        for digest in self._digests:
            known |= hmac.compare_digest(digest, given)
        return None if known else _unauthorized("Incorrect API key provided.")


def _is_open(scope: Scope) -> bool:
    path, method = scope["path"], scope["method"]
    if method in ("GET", "HEAD") and (path == "/" or path.startswith(f"{PAGE_FILES}/")):
        return True
    return path in _OPEN_PATHS or method == "OPTIONS"


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


class BodyLimits:
    """Bounds the request body: 413 over `max_bytes`, declared or counted, and 408 when it does not arrive in time.

    The body is collected here, so that a handler never waits for a half-sent one; it is handed on as one message.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, timeout: float) -> None:
        self.app = app
        self._max_bytes = max_bytes
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        try:
            if declared.isdigit() and int(declared[:20]) > self._max_bytes:
                raise self._too_large()
            async with asyncio.timeout(self._timeout):
                body = await self._collect(receive)
        except TimeoutError:
            message = f"The request body did not arrive within {self._timeout:g} seconds."
            refusal = ApiError(408, message, code="request_timeout", headers={"Connection": "close"})
            await refusal.response()(scope, receive, send)
            return
        except ApiError as refusal:
            await refusal.response()(scope, receive, self._lingering(receive, send))
            return
        if body is None:  # the client left before it had sent everything
            return
        await self.app(scope, _replay(body, receive), send)

    async def _collect(self, receive: Receive) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return b"".join(parts)

    def _lingering(self, receive: Receive, send: Send) -> Send:
        """A send channel that ends the answer only when the client has stopped sending, or after `timeout`: closing
        a connection on which data still arrives resets it, and the client might never see the answer."""

        async def linger(message: Message) -> None:
            if message["type"] != "http.response.body":
                await send(message)
                return
            await send({**message, "more_body": True})
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout):
                    while (more := await receive())["type"] == "http.request" and more.get("more_body", False):
                        pass
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        return linger

    def _too_large(self) -> ApiError:
        message = f"The request body is larger than the {self._max_bytes} bytes that this server accepts."
        return ApiError(413, message, code="request_too_large", headers={"Connection": "close"})


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive channel that first gives the collected body, then whatever comes (a disconnect)."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


class HeadAsGet:
    """Answers HEAD as GET without the body, which load balancers ask for and the framework's routes do not know."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self.app({**scope, "method": "GET"}, receive, send_head)
