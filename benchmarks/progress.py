"""A progress bar with the time left, and a line for each thing done, on stderr; without a terminal just the lines."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Report(Protocol):
    def __call__(self, line: str | None = None, steps: float = 1) -> None:
        """So many more steps are done. line: what there is to say about them."""
        ...


@contextmanager
def progress(title: str, total: float) -> Iterator[Report]:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task(title, total=total)

        def report(line: str | None = None, steps: float = 1) -> None:
            bars.advance(task, steps)
            if line is not None:
                console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)

        yield report
