"""PNG plots of a speed run. matplotlib comes with the `bench` extra and is imported only here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchError
from benchmarks.interleave import MIXED
from benchmarks.samples import Row

_HINT = "plots need matplotlib: pip install 'slipstream[bench]', or run with --no-plots"


class PlotsMissingError(BenchError):
    """matplotlib is not installed."""


def require() -> Any:
    """matplotlib's pyplot, drawing into files. PlotsMissingError, with what to install, where there is none."""
    try:
        import matplotlib
    except ImportError as error:
        raise PlotsMissingError(_HINT) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw(rows: Sequence[Row], folder: Path, name: str) -> list[Path]:
    """Write what the rows allow: speed by kind of prompt, and throughput by number of clients."""
    drawn = [_ratios(rows, folder / f"{name}-ratios.png"), _throughput(rows, folder / f"{name}-throughput.png")]
    return [path for path in drawn if path is not None]


def _ratios(rows: Sequence[Row], path: Path) -> Path | None:
    """Bars: the median ratio to `off` by category at one client, with min and max."""
    alone = [row for row in rows if row.concurrency == 1 and row.ratio is not None]
    groups = list(dict.fromkeys(row.group for row in alone))
    settings = list(dict.fromkeys(row.setting for row in alone))
    if not alone:
        return None
    plt = require()
    figure, axes = plt.subplots(figsize=(max(6.0, 1.0 + 0.3 * len(groups) * (len(settings) + 1)), 4.5))
    width = 0.8 / len(settings)
    for number, setting in enumerate(settings):
        mine = {row.group: row.ratio for row in alone if row.setting == setting and row.ratio is not None}
        places = [i + (number - (len(settings) - 1) / 2) * width for i, group in enumerate(groups) if group in mine]
        spreads = [mine[group] for group in groups if group in mine]
        medians = [one.median for one in spreads]
        errors = [[one.median - one.min for one in spreads], [one.max - one.median for one in spreads]]
        axes.bar(places, medians, width, yerr=errors, capsize=2, label=setting, error_kw={"linewidth": 0.8})
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), groups, rotation=30, ha="right")
    axes.set_ylabel("speed against off (median, min..max)")
    axes.legend(fontsize="small")
    return save(plt, figure, path)


def _throughput(rows: Sequence[Row], path: Path) -> Path | None:
    """Lines: tokens per second of all clients together by their number."""
    sizes = sorted({row.concurrency for row in rows})
    if len(sizes) < 2:
        return None
    plt = require()
    figure, axes = plt.subplots(figsize=(6.0, 4.5))
    for setting in dict.fromkeys(row.setting for row in rows):
        medians = {size: _overall(rows, size, setting) for size in sizes}
        known = {size: rate for size, rate in medians.items() if rate is not None}
        axes.plot(list(known), list(known.values()), marker="o", label=setting)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("clients at once")
    axes.set_ylabel("tokens per second, all together (median)")
    axes.legend(fontsize="small")
    return save(plt, figure, path)


def _overall(rows: Sequence[Row], size: int, setting: str) -> float | None:
    """Of all prompts at one number of clients: the widest group's median."""
    mine = [row for row in rows if row.concurrency == size and row.setting == setting and row.rate is not None]
    widest = max(mine, key=lambda row: (row.group in (MIXED, "all"), row.samples), default=None)
    return None if widest is None or widest.rate is None else widest.rate.median


def save(plt: Any, figure: Any, path: Path) -> Path:
    """Write the figure as PNG and let go of it."""
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
