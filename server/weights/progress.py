"""Progress of a long download: a bar on a terminal, a log line now and then elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server.weights.disk import human

log = logging.getLogger(__name__)

Update = Callable[[int], None]
_LOG_SECONDS = 10.0


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Update]:
    """Yield a function that takes the bytes done so far. total: bytes in all, None if unknown."""
    if sys.stderr.isatty():
        with _bar(title, total) as update:
            yield update
    else:
        yield _log_lines(title, total)


@contextmanager
def _bar(title: str, total: int | None) -> Iterator[Update]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(title, total=total)
        yield lambda done: bars.update(task, completed=done)


def _log_lines(title: str, total: int | None) -> Update:
    last = time.monotonic()

    def update(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _LOG_SECONDS:
            last = time.monotonic()
            share = f" of {human(total)} ({100 * done // total} %)" if total else ""
            log.info("%s: %s%s", title, human(done), share)

    return update
