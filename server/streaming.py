"""How answers leave: as server-sent events, or whole; in both cases a client that goes away stops its generation."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from server.errors import ApiError, internal
from server.generation import Generation

logger = logging.getLogger(__name__)
T = TypeVar("T")
Chunks = AsyncIterator[dict[str, Any]]

PING_SECONDS = 15
SEND_TIMEOUT = 120.0  # a client that reads nothing for so long is gone
LAST_WORDS_SECONDS = 5  # after the drain time: the round in flight ends, then each answer it cut short says so
SETTLE_SECONDS = 5.0  # how long a failure may still become a plain HTTP error; then headers and pings must flow


class ClientGoneError(Exception):
    """The client closed the connection before its answer was complete."""


async def data_events(chunks: Chunks) -> AsyncIterator[bytes]:
    """Chunks as `data:` events and `[DONE]`.

    An error after the first byte becomes an event with OpenAI's error object, which SDKs raise; no [DONE] follows,
    as the answer is not complete.
    """
    try:
        async for chunk in chunks:
            yield data_line(chunk) + b"\n"
    except ApiError as error:
        yield data_line(error.body()) + b"\n"
        return
    except Exception:
        logger.exception("a stream failed")
        yield data_line(internal().body()) + b"\n"
        return
    yield b"data: [DONE]\n\n"


def data_line(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def long_data_line(value: dict[str, Any]) -> bytes:
    """The same for a value that may be megabytes; call it in a thread."""
    return b"data: " + _encode_long(value) + b"\n"


class ChunkStream(EventSourceResponse):
    """Streams chunks as server-sent events. Whatever ends the response ends the generation.

    events: how the dialect writes its chunks as events, its end and its errors.
    """

    def __init__(
        self,
        chunks: Chunks,
        generation: Generation,
        drain_seconds: float,
        events: Callable[[Chunks], AsyncIterator[bytes]] = data_events,
    ) -> None:
        super().__init__(
            events(_telling(chunks, generation)),
            headers={"Cache-Control": "no-cache"},
            ping=PING_SECONDS,
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
            sep="\n",
            send_timeout=SEND_TIMEOUT,
            # On shutdown running answers are finished, or ended by the engine, whose last event is still to be sent.
            shutdown_grace_period=drain_seconds + LAST_WORDS_SECONDS,
        )
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.close()


async def _telling(chunks: Chunks, generation: Generation) -> Chunks:
    """The chunks; behind the last one the generation is closed, and knows if a renderer failed."""
    try:
        async for chunk in chunks:
            yield chunk
    except Exception as error:
        generation.failed(error)
        raise
    finally:
        generation.close()


class WholeAnswer(JSONResponse):
    """An answer in one; build it in a thread."""

    def render(self, content: Any) -> bytes:
        return _encode_long(content)


_ENTRY_DEPTH = 5  # answer > choices > choice > logprobs > its lists > an entry
_LONG_LIST = 256
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _encode_long(value: Any) -> bytes:
    """With logprobs an answer may be 10 MB, half a second of encoding, and as Python's encoder keeps the interpreter
    to itself until it returns, it is called entry by entry, lest the event loop waits."""
    return "".join(_json_pieces(value, _ENTRY_DEPTH)).encode()


def _json_pieces(value: Any, depth: int) -> Iterator[str]:
    """The JSON of `value`; containers at most `depth` deep are walked, what is deeper is one piece if it is short."""
    if depth and value and isinstance(value, dict):
        for index, (key, item) in enumerate(value.items()):
            yield f"{',' if index else '{'}{_encode(key)}:"
            yield from _json_pieces(item, depth - 1)
        yield "}"
    elif value and isinstance(value, list) and (depth or len(value) > _LONG_LIST):
        for index, item in enumerate(value):
            yield "," if index else "["
            yield from _json_pieces(item, max(0, depth - 1))
        yield "]"
    else:
        yield _encode(value)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects; then ClientGoneError."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for each in (task, watcher):
            each.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    # The body has been read, so the next message that is not part of it says that the client has left.
    while (await request.receive())["type"] != "http.disconnect":
        pass
