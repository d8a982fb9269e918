"""Rows as tables' cells."""

from benchmarks.evaluation.summary import Row
from benchmarks.tables import Cells, rules, share

HEAD = (
    "task", "setting", "items", "answers", "score", "recovery", "95 %", "estimated speedup", "measured speedup", "tau",
    "accepted", "loosened", "length", "as off's", "agrees for", "cut off",
)  # fmt: skip


def cells(row: Row) -> Cells:
    return (
        row.group,
        row.setting,
        str(row.items),
        "" if row.answers == row.items else str(row.answers),
        share(row.score),
        share(row.recovery),
        "" if row.interval is None else f"{row.interval[0]:.1%}..{row.interval[1]:.1%}",
        _times(row.estimated_speedup),
        _times(row.measured_speedup),
        "" if row.tau is None else f"{row.tau:.2f}",
        share(row.acceptance),
        rules(row.loosened),
        "" if row.length is None else f"{row.length - 1:+.1%}",
        share(row.equal),
        share(row.agreement),
        share(row.cut),
    )


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"
