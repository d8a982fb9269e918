"""How far a calibration is: a bar with the time left on a terminal, a log line now and then elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

_LOG_SECONDS = 30.0


@contextmanager
def progress(known: int, total: int) -> Iterator[Callable[[], None]]:
    """Yield what is to be called when another prompt is done. known: prompts of `total` that were done before."""
    if sys.stderr.isatty():
        with _bar(known, total) as advance:
            yield advance
    else:
        yield _log_lines(known, total)


@contextmanager
def _bar(known: int, total: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("calibrating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=300) as bars:
        task = bars.add_task("", total=total, completed=known)
        yield lambda: bars.advance(task)


def _log_lines(known: int, total: int) -> Callable[[], None]:
    began = last = time.monotonic()
    done = known

    def advance() -> None:
        nonlocal done, last
        done += 1
        now = time.monotonic()
        if now - last >= _LOG_SECONDS:
            last = now
            left = (now - began) / (done - known) * (total - done)
            log.info("%d of %d prompts, about %.0f min left", done, total, left / 60)

    return advance
