"""Adaptive draft lengths against fixed ones: python -m benchmarks.draft_length

Simulated: the scheduler's real planning over made-up tokens whose drafts are right with a given chance, rounds that
take what a table of costs says. The table is measured on this machine with the models of --config, as at start-up,
or given: --target 1:100,4:110,8:150,16:220 --draft 1:30,8:40 in any unit. Writes JSON, a table and, where matplotlib
is installed, a plot; figures are tokens per second over those without drafts.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from benchmarks.plots import PlotsMissingError, require
from benchmarks.results_file import Results, Table
from benchmarks.workshop import Workshop
from core.forward_costs import ForwardCosts, RowCurve

FIXED = (0, 2, 5, 10, 15)
ACCEPTANCES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95)
BATCHES = (1, 2, 4, 8, 16)

Cell = dict[str, float]


def curve(text: str) -> RowCurve:
    """1:0.1,8:0.15 -> seconds by rows. ValueError if it is no such list."""
    return RowCurve({int(rows): float(seconds) for rows, seconds in (part.split(":") for part in text.split(","))})


def simulate(costs: ForwardCosts, acceptance: float, running: int, rounds: int, answer: int) -> Cell:
    """Tokens per second by length, over those of no drafts."""
    lengths = {str(k): (k, False) for k in FIXED} | {"adaptive": (max(FIXED), True)}
    rates = {
        name: Workshop(costs, acceptance, running, k, adaptive, answer).tokens_per_second(rounds)
        for name, (k, adaptive) in lengths.items()
    }
    return {name: rate / rates["0"] for name, rate in rates.items()}


async def measured(config: Path) -> ForwardCosts:
    from benchmarks.stack import load_stack

    stack = await load_stack(config)
    costs = stack.runtime.forward_costs.start
    if costs is None or costs.draft is None:
        raise SystemExit(f"{config} has no draft model")
    return costs


def draw(table: dict[tuple[int, float], Cell], path: Path) -> None:
    """One panel a batch size: the ratio by acceptance, a line a length."""
    plt = require()
    figure, panels = plt.subplots(1, len(BATCHES), figsize=(3.2 * len(BATCHES), 3.2), sharey=True)
    for panel, running in zip(panels, BATCHES, strict=True):
        for name in next(iter(table.values())):
            values = [table[running, acceptance][name] for acceptance in ACCEPTANCES]
            panel.plot(ACCEPTANCES, values, label=name, linewidth=2.5 if name == "adaptive" else 1)
        panel.set_title(f"{running} at once")
        panel.set_xlabel("acceptance")
    panels[0].set_ylabel("speed against no drafts")
    panels[0].legend(title="K", fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--target", type=curve, help="seconds of a target forward by rows, instead of --config")
    parser.add_argument("--draft", type=curve, help="seconds of a draft forward by rows, with --target")
    parser.add_argument("--rounds", type=int, default=400, help="rounds of each cell")
    parser.add_argument("--answer", type=int, default=200, help="tokens of an answer")
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    options = parser.parse_args()
    if (options.target is None) != (options.draft is None):
        parser.error("--target and --draft go together")
    given = options.target is not None
    costs = ForwardCosts(options.target, options.draft) if given else asyncio.run(measured(options.config))
    table = {
        (running, acceptance): simulate(costs, acceptance, running, options.rounds, options.answer)
        for running in BATCHES
        for acceptance in ACCEPTANCES
    }
    names = list(next(iter(table.values())))
    rows: list[Any] = [
        (str(running), f"{acceptance:g}", *(f"{cell[name]:.2f}" for name in names))
        for (running, acceptance), cell in table.items()
    ]
    content = {
        "costs": {"target": costs.target.points, "draft": costs.draft.points if costs.draft else {}},
        "cells": [{"running": r, "acceptance": a, "ratios": cell} for (r, a), cell in table.items()],
        "worst_adaptive": min(cell["adaptive"] for cell in table.values()),
    }
    results = Results(options.out, "draft-length")
    head = ("at once", "acceptance", *(name if name == "adaptive" else f"K = {name}" for name in names))
    results.write(
        "draft-length", "Adaptive draft length against fixed (speed over no drafts)", content, [Table(head, rows)]
    )
    try:
        draw(table, results.path(".png"))
    except PlotsMissingError as error:
        print(error)
    print(json.dumps({"worst_adaptive": content["worst_adaptive"]}))


if __name__ == "__main__":
    main()
