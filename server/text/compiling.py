"""Compiling apart: in threads that have a deep stack and that nobody waits for longer than a few seconds.

llguidance recurses along rules that lead to rules, and along schemas that refer to schemas; on a usual stack of 8 MB a
chain of two thousand, which is 60 KB of text, would end the process.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

PATIENCE = 5.0
"""Seconds after which a constraint is refused; all that are bounded by nothing else take less."""

# The longest constraint takes some 100 MB; the system gives only what is used.
_STACK_BYTES = 512 << 20
_stack_size = threading.Lock()  # the setting is the process's
_running = threading.BoundedSemaphore(4)
T = TypeVar("T")


class ConstraintsBusyError(Exception):
    """Other constraints, which take very long, are still being compiled."""


def apart(work: Callable[[], T], patience: float | None = None) -> T:
    """work() in a thread of its own. TimeoutError if it takes more than `patience` seconds: nothing can stop it, and
    it counts among the few that may run until it has ended. ConstraintsBusyError if those are too many."""
    counted = patience is not None
    if counted and not _running.acquire(timeout=patience):
        raise ConstraintsBusyError
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        finally:
            if counted:
                _running.release()

    with _stack_size:
        before = threading.stack_size(_STACK_BYTES)
        try:
            threading.Thread(target=run, name="constraint", daemon=True).start()
        finally:
            threading.stack_size(before)
    return future.result(patience)
