"""PNG plots of an evaluation: recovery by task, and what is paid for speed with it."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.evaluation.summary import Row
from benchmarks.plots import require, save


def draw(rows: Sequence[Row], folder: Path, name: str) -> list[Path]:
    """What the rows allow: nothing without a score."""
    scored = [row for row in rows if row.recovery is not None]
    if not scored:
        return []
    drawn = [_by_task(scored, folder / f"{name}-recovery.png")]
    if any(row.estimated_speedup for row in scored):
        drawn.append(_tradeoff(scored, folder / f"{name}-tradeoff.png"))
    return drawn


def _by_task(rows: Sequence[Row], path: Path) -> Path:
    """Recovery with its interval, a mark for each setting."""
    plt = require()
    groups = list(dict.fromkeys(row.group for row in rows))
    settings = list(dict.fromkeys(row.setting for row in rows))
    figure, axes = plt.subplots(figsize=(max(6.0, 1.0 + 0.3 * len(groups) * (len(settings) + 1)), 4.5))
    for number, setting in enumerate(settings):
        mine = [row for row in rows if row.setting == setting]
        shift = (number - (len(settings) - 1) / 2) * 0.8 / len(settings)
        places = [groups.index(row.group) + shift for row in mine]
        values = [_percent(row.recovery) for row in mine]
        errors = [[max(0.0, end) for end in side] for side in zip(*map(_error, mine), strict=True)]
        axes.errorbar(places, values, yerr=errors, fmt="o", capsize=3, label=setting)
    axes.axhline(100.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), groups, rotation=30, ha="right")
    axes.set_ylabel("score in % of off's (95 % interval)")
    axes.legend(fontsize="small")
    return save(plt, figure, path)


def _tradeoff(rows: Sequence[Row], path: Path) -> Path:
    """Recovery against estimated speedup, of the widest group."""
    plt = require()
    widest = max((row for row in rows), key=lambda row: row.items).group
    figure, axes = plt.subplots(figsize=(6.0, 4.5))
    for row in rows:
        if row.group == widest and row.estimated_speedup is not None:
            error = [[max(0.0, end)] for end in _error(row)]
            place = [row.estimated_speedup], [_percent(row.recovery)]
            axes.errorbar(*place, yerr=error, fmt="o", capsize=3, label=row.setting)
    axes.axhline(100.0, color="black", linewidth=0.8)
    axes.set_xlabel("estimated speedup over off")
    axes.set_ylabel(f"score in % of off's, {widest}")
    axes.legend(fontsize="small")
    return save(plt, figure, path)


def _percent(value: float | None) -> float:
    return 100.0 * (value or 0.0)


def _error(row: Row) -> tuple[float, float]:
    """How far the interval reaches below and above."""
    low, high = row.interval or (row.recovery or 0.0, row.recovery or 0.0)
    return _percent(row.recovery) - _percent(low), _percent(high) - _percent(row.recovery)
