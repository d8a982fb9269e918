"""At which costs a longer accepted length is a faster answer: python -m benchmarks.cost_ratio EVALUATION.json

A model of speed, not a measurement. A round with K drafts takes a forward of the target over K + 1 rows and K of the
draft model, and delivers tau tokens:

    speed = tau(K) / (V(K + 1) + K * D)

Lookup's help (`multilevel`) makes the same drafts with fewer forwards, so with it a draft step is cheaper than D.
tau is what `slipstream evaluate` found for each verifier at several fixed K (`--preset block-length`), V and D what the
start measures on this machine with the models of --config, or what is given: --target 1:100,4:110,16:220 --draft 1:30.
Two prices are then varied: D as a part of V(1), and what rows beyond the first cost, as a part of what they cost here
(0: nothing, as on a GPU that waits for its memory). Everyone takes the best of its K, or no drafts. Writes JSON and a
table.
"""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.draft_length import curve, measured
from benchmarks.errors import BenchError
from benchmarks.results_file import Results, Table
from core.forward_costs import ForwardCosts, RowCurve

DRAFT_PRICES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6)
ROW_PRICES = (1.0, 0.5, 0.25, 0.0)
_FINE = [step / 1000 for step in range(1001)]

Lengths = Mapping[int, float]
"""tau by K."""


class Prices(NamedTuple):
    """draft: a draft step over the target's forward of one row. rows: of rows beyond the first, over what they cost in
    `target`."""

    target: RowCurve
    draft: float
    rows: float

    def round_cost(self, drafts: int) -> float:
        """Of a round with so many drafts, over the target's forward of one row."""
        return 1 + self.rows * (self.target.at(drafts + 1) / self.target.at(1) - 1) + drafts * self.draft

    def best(self, lengths: Lengths) -> tuple[float, int]:
        """Speed over that of no drafts, and the K that has it; (1.0, 0) if none pays."""
        return max([(1.0, 0), *((tau / self.round_cost(k), k) for k, tau in lengths.items())])


def accepted_lengths(evaluation: Mapping[str, Any]) -> Mapping[str, Lengths]:
    """tau by K of each verifier, of all tasks together, from evaluate's JSON. BenchError unless strict is there with
    several K."""
    rows = evaluation["summary"]
    widest = rows[-1]["group"]
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        fields = evaluation["settings"][row["setting"]]
        k, verifier = fields.get("num_draft_tokens"), fields.get("verifier")
        if row["group"] == widest and row["tau"] and k and fields.get("draft_length") == "fixed":
            name = verifier if isinstance(verifier, str) else str(verifier["type"])
            if k in found.setdefault(name, {}):
                raise BenchError(f"two settings of {name} with K = {k}; the model takes one of each")
            found[name][k] = row["tau"]
    if len(found.get("strict", {})) < 2:
        raise BenchError("the model needs strict at two fixed lengths at least: evaluate --preset block-length")
    return found


def dearest_draft(target: RowCurve, rows: float, loose: Lengths, strict: Lengths) -> float | None:
    """The dearest draft step, of the target's forward, at which a loose verifier beats both strict and no drafts at
    these prices of rows, each at its best; None if it never does."""
    faster = [
        price
        for price in _FINE
        if Prices(target, price, rows).best(loose)[0] > Prices(target, price, rows).best(strict)[0]
    ]
    return faster[-1] if faster else None


def model(costs: ForwardCosts, lengths: Mapping[str, Lengths]) -> dict[str, Any]:
    """Speeds of every verifier at all prices, and here."""
    if costs.draft is None:
        raise BenchError("there is no draft model")
    here = Prices(costs.target, costs.draft.at(1) / costs.target.at(1), 1.0)
    grid = [Prices(costs.target, draft, rows) for rows in ROW_PRICES for draft in DRAFT_PRICES]
    strict = lengths["strict"]
    return {
        "costs": {"target": costs.target.points, "draft": costs.draft.points},
        "tau": lengths,
        "here": _cell(here, lengths),
        "cells": [_cell(prices, lengths) for prices in grid],
        "faster_than_strict_up_to": {
            name: {str(rows): dearest_draft(costs.target, rows, loose, strict) for rows in ROW_PRICES}
            for name, loose in lengths.items()
            if name != "strict"
        },
    }


def _cell(prices: Prices, lengths: Mapping[str, Lengths]) -> dict[str, Any]:
    best = {name: prices.best(by_k) for name, by_k in lengths.items()}
    return {
        "draft_price": prices.draft,
        "row_price": prices.rows,
        "speed": {name: speed for name, (speed, _) in best.items()},
        "drafts": {name: drafts for name, (_, drafts) in best.items()},
    }


def tables(found: Mapping[str, Any]) -> list[Table]:
    """Speeds over no drafts with the K behind them, and up to which price of drafts each verifier beats strict."""
    names = list(found["tau"])
    cells = [found["here"], *found["cells"]]
    lines: list[Sequence[str]] = [
        (
            ("here: " if cell is found["here"] else "") + f"{cell['draft_price']:.2f}",
            f"{cell['row_price']:g}",
            *(f"{cell['speed'][name]:.2f} (K = {cell['drafts'][name]})" for name in names),
        )
        for cell in cells
    ]
    limits = found["faster_than_strict_up_to"]
    bounds: list[Sequence[str]] = [
        (name, *("never" if (price := by_rows[str(rows)]) is None else f"{price:.2f}" for rows in ROW_PRICES))
        for name, by_rows in limits.items()
    ]
    return [
        Table(("draft step / target's forward", "price of rows", *names), lines),
        Table(("faster than strict up to a draft step of", *(f"rows x {rows:g}" for rows in ROW_PRICES)), bounds),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluation", type=Path)
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--target", type=curve, help="seconds of a target forward by rows, instead of --config")
    parser.add_argument("--draft", type=curve, help="seconds of a draft forward by rows, with --target")
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    parser.add_argument("--name", default="cost-ratio")
    options = parser.parse_args()
    if (options.target is None) != (options.draft is None):
        parser.error("--target and --draft go together")
    try:
        lengths = accepted_lengths(json.loads(options.evaluation.read_text()))
    except BenchError as error:
        parser.error(str(error))
    given = options.target is not None
    costs = ForwardCosts(options.target, options.draft) if given else asyncio.run(measured(options.config))
    found = model(costs, lengths)
    title = "Speed over no drafts by the costs of drafts and rows (a model, fed with measured accepted lengths)"
    Results(options.out, options.name).write("cost-ratio", title, found, tables(found))


if __name__ == "__main__":
    main()
