"""Channel and RequestStream: how one request's events get from the engine to whoever asked.

The engine puts events in without ever waiting. A slow consumer holds up nobody, and since every
TokensEvent carries at least one token, what piles up for it is bounded by its own max_tokens.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from scheduler.events import Event, FinishedEvent


class Channel:
    """The engine's end: a queue of events that a closed consumer no longer fills."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.ready = asyncio.Event()
        self.closed = False

    def put(self, event: Event) -> None:
        if not self.closed:
            self.events.append(event)
            self.ready.set()

    def close(self) -> None:
        self.closed = True
        self.events.clear()
        self.ready.set()


class RequestStream(AsyncIterator[Event]):
    """The consumer's end: TokensEvents, then one FinishedEvent; one consumer only.

    The request is aborted when the stream is closed before its end: by aclose(), by leaving `async with`,
    by dropping the last reference, or when a task is cancelled while it waits for the next event. So a
    time limit around one event (asyncio.wait_for) aborts the request; to be woken without that, wait for
    the event in a task of its own with asyncio.wait. After a close the iteration just ends.
    """

    def __init__(self, request_id: str, channel: Channel, abort: Callable[[], None]) -> None:
        """abort: ends this very request; harmless once it has finished. RuntimeError outside the event loop."""
        self._loop = asyncio.get_running_loop()
        self.request_id = request_id
        self._channel = channel
        self._abort = abort

    async def __anext__(self) -> Event:
        channel = self._channel
        while not channel.events:
            if channel.closed:
                raise StopAsyncIteration
            channel.ready.clear()
            try:
                await channel.ready.wait()
            except asyncio.CancelledError:
                self._close()
                raise
        event = channel.events.popleft()
        if isinstance(event, FinishedEvent):
            channel.close()
        return event

    async def aclose(self) -> None:
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if not self._channel.closed:
            self._channel.close()
            self._abort()

    def __del__(self) -> None:
        # A consumer that just forgot its stream must not keep the model busy. The garbage collector may run
        # in any thread, so the abort goes through the loop.
        if not self._channel.closed and not self._loop.is_closed():
            self._channel.closed = True
            self._loop.call_soon_threadsafe(self._abort)
