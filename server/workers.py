"""Pools of threads for what would hold up the event loop, each for one kind of work, so that none starves another.

A thread cannot be stopped from outside: what runs here is bounded by limits on its input, and what waits by the
pool's queue. Work that is short and cannot be made long stays with asyncio.to_thread.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import Any, TypeVar

from server.errors import ApiError

T = TypeVar("T")
_RETRY_AFTER = 2.0


class WorkPool:
    """name: the kind of work, as clients may read it. waiting: how much of it may wait for a thread."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name.replace(" ", "-"))
        self._places = BoundedSemaphore(threads + waiting)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """work(*arguments) in one of the threads. ApiError 429 if too much is waiting; a caller that is cancelled
        takes back what has not begun."""
        if not self._places.acquire(blocking=False):
            raise busy(self._name)
        try:
            future = self._executor.submit(contextvars.copy_context().run, work, *arguments)
        except BaseException:
            self._places.release()
            raise
        future.add_done_callback(lambda _: self._places.release())
        return await asyncio.wrap_future(future)


def busy(name: str) -> ApiError:
    """429: too many wait for their work of that kind."""
    message = f"The server is busy: too many requests are waiting for their {name}. Please try again later."
    return ApiError(429, message, type="rate_limit_error", code="queue_full", retry_after=_RETRY_AFTER)


PROMPTS = WorkPool("prompt to be read", threads=4, waiting=1024)
CONSTRAINTS = WorkPool("grammar to be compiled", threads=2, waiting=64)
TOKENIZING = WorkPool("text to be tokenised", threads=1, waiting=64)
