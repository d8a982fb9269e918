"""Tables: the same cells as Markdown and on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.samples import Row, Spread

Cells = Sequence[str]
SPEED_HEAD = (
    "prompts", "clients", "setting", "against off", "mean", "min..max", "mean of categories", "against strict",
    "tokens/s", "ms a token", "tau", "accepted", "loosened", "answers differing",
)  # fmt: skip


def speed_cells(row: Row) -> Cells:
    return (
        row.group,
        str(row.concurrency),
        row.setting,
        ratio(row.ratio),
        mean(row.ratio),
        extent(row.ratio),
        "" if row.category_mean is None else f"{row.category_mean:.2f}x",
        "" if row.strict_ratio is None else f"{ratio(row.strict_ratio)} ({extent(row.strict_ratio)})",
        "" if row.rate is None else f"{row.rate.median:.1f}",
        "" if row.token_seconds is None else f"{1e3 * row.token_seconds.median:.0f}",
        "" if row.tau is None or row.ratio is None else f"{row.tau:.2f}",
        "" if row.acceptance is None else f"{row.acceptance:.0%}",
        rules(row.loosened),
        "" if row.ratio is None else f"{row.differing} of {row.answers}",
    )


def ratio(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.2f}x"


def mean(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.mean:.2f}x"


def extent(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.min:.2f}..{spread.max:.2f}"


def share(value: float | None) -> str:
    """97.5%; nothing for what is not known."""
    return "" if value is None else f"{value:.1%}"


def rules(loosened: Mapping[str, int]) -> str:
    return ", ".join(f"{tokens} {rule}" for rule, tokens in loosened.items())


def markdown(head: Cells, rows: Sequence[Cells]) -> str:
    """A Markdown table, without the columns that are empty throughout."""
    head, rows = _filled(head, rows)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def show(title: str, head: Cells, rows: Sequence[Cells]) -> None:
    """The table on stdout."""
    head, rows = _filled(head, rows)
    table = Table(title=title, title_justify="left")
    for name in head:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    console = Console()
    # Where nobody looks, a line must not be cut to a width that nobody chose.
    (console if console.is_terminal else Console(width=200)).print(table, markup=False)


def _filled(head: Cells, rows: Sequence[Cells]) -> tuple[list[str], list[list[str]]]:
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return [head[i] for i in kept], [[row[i] for i in kept] for row in rows]


def flat(figures: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested figures as lines: {"a": {"b": 1.25}} -> [("a b", "1.25")]; lists are left to the JSON file."""
    lines: list[tuple[str, str]] = []
    for key, value in figures.items():
        name = f"{prefix} {key}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            lines += flat(value, name)
        elif isinstance(value, float):
            lines.append((name, f"{value:.4g}"))
        elif isinstance(value, str | int):
            lines.append((name, str(value)))
    return lines
