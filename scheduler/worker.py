"""RoundWorker: the one thread besides the event loop's in which sequences and blocks are touched."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class RoundWorker:
    """in_flight: whether work is being done, so that nobody else may look at what it touches."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="round")
        self.in_flight = False

    async def run(self, work: Callable[[], T]) -> T:
        """Await `work` in the thread; a cancellation takes effect when it is done, never amid it."""
        self.in_flight = True
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future})
            raise
        finally:
            self.in_flight = False

    def close(self) -> None:
        self._thread.shutdown(wait=False)
