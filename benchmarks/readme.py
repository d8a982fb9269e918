"""Write the README's figures from the result files.

    python -m benchmarks.readme                          from benchmarks/results into README.md
    python -m benchmarks.readme FOLDER [FILE]

What stands between the two markers is replaced; everything else stays. A figure that no file tells is not written, nor
are simulations (kind draft-length), which measure nothing.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchError
from benchmarks.machine import one_line
from benchmarks.tables import flat, markdown, rules, share

BEGIN, END = "<!-- figures: written by python -m benchmarks.readme -->", "<!-- end of figures -->"
_OMITTED = ("draft-length", "audit", "adversarial", "telemetry")  # their own pages in docs/ tell of them

_FOLDED = ("costs", "company", "footprint")  # long lists

Result = Mapping[str, Any]


def refresh(readme: Path, results: Path) -> None:
    """Replace the figures. BenchError without the markers, without any result, or for one of an unknown kind."""
    text = readme.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"{readme} lacks the markers {BEGIN} and {END}")
    found = [(path, result) for path in sorted(results.glob("*.json")) if (result := _read(path))]
    if not found:
        raise BenchError(f"{results} holds no results")
    found.sort(key=lambda pair: list(_WRITERS).index(pair[1]["kind"]))
    parts = [_section(path, result, readme.parent) for path, result in found]
    readme.write_text(before + begin + "\n" + "\n".join(parts) + end + after, "utf-8")


def _read(path: Path) -> Result | None:
    """None for what is left out. BenchError for what this program does not know, however old."""
    result = json.loads(path.read_text("utf-8"))
    kind = result.get("kind") if isinstance(result, dict) else None
    if kind not in (*_WRITERS, *_OMITTED):
        raise BenchError(f"{path} is a result of kind {kind!r}; known are {', '.join((*_WRITERS, *_OMITTED))}")
    return None if kind in _OMITTED else result


def _section(path: Path, result: Result, root: Path) -> str:
    where = path.resolve().relative_to(root.resolve()) if path.resolve().is_relative_to(root.resolve()) else path
    told = f"{result['date']} on {one_line(result['machine'])}, commit {result['commit']}{_extent_of_run(result)}"
    tables = "\n".join(filter(None, _WRITERS[result["kind"]](result)))
    head = f"{result['title']} ({told}"
    if result["kind"] not in _FOLDED:
        return f"{head}; [raw results]({where.as_posix()})):\n\n{tables}"
    return f"<details><summary>{head})</summary>\n\n[Raw results]({where.as_posix()}).\n\n{tables}\n\n</details>\n"


def _extent_of_run(result: Result) -> str:
    """How much text is behind the figures, where the file tells."""
    if "max_tokens" not in result:
        return ""
    passes = result.get("passes", 1)
    told = f"; answers of at most {result['max_tokens']} tokens"
    return told + (f", {passes} passes" if passes > 1 else "")


def _speed(result: Result) -> Iterable[str]:
    """In short; by kind of prompt at one client; what the settings delivered; by clients on the same prompts."""
    rows = result["summary"]
    yield from filter(None, [_in_short(rows, result["by_clients"])])
    alone = [row for row in rows if row["concurrency"] == 1 and row["ratio"]]
    if alone:
        yield from _alone(alone)
    if result["by_clients"]:
        yield _by_clients(result["by_clients"])


def _in_short(rows: list[Result], by_clients: list[Result]) -> str:
    """Every setting's median at one client, and its throughput with the most clients, both against `off`."""
    alone = [row for row in rows if row["concurrency"] == 1 and row["ratio"]]
    most = max((row["concurrency"] for row in by_clients), default=1)
    if not alone or most == 1:
        return ""
    widest = [row for row in alone if row["group"] == alone[-1]["group"]]
    single = ", ".join(f"{row['ratio']['median']:.2f}x under `{row['setting']}`" for row in widest)
    many = [row for row in by_clients if row["concurrency"] == most and row["over_off"]]
    together = ", ".join(f"{row['over_off']['median']:.2f}x under `{row['setting']}`" for row in many)
    return (
        f"In short: against `off`, one client's answers come {single} as fast; with {most} clients it is {together}.\n"
    )


def _alone(rows: list[Result]) -> Iterable[str]:
    """A line a group of prompts: against `off`, and what loose settings make of it against `strict`."""
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    groups = list(dict.fromkeys(row["group"] for row in rows))
    loose = [setting for setting in settings if any(row["strict_ratio"] for row in rows if row["setting"] == setting)]
    lines = []
    for group in groups:
        mine = {row["setting"]: row for row in rows if row["group"] == group}
        against_off = [_with_mean(mine[name]["ratio"]) if name in mine else "" for name in settings]
        against_strict = [_spread(mine[name]["strict_ratio"]) if name in mine else "" for name in loose]
        lines.append([group, str(next(iter(mine.values()))["samples"]), *against_off, *against_strict])
    for group in groups:
        means = [_category_mean(_find(rows, group=group, setting=name)) for name in settings]
        if any(means):
            lines.append([f"{group}: mean of the categories' medians", "", *means, *([""] * len(loose))])
    head = ["one client", "n", *(f"`{name}` against `off`" for name in settings)]
    yield markdown([*head, *(f"`{name}` against `strict`" for name in loose)], lines)
    yield markdown(
        ["one client, all prompts", "tokens a round (tau)", "tokens", "loosened", "answers that are not `off`'s"],
        [_delivered(row) for row in rows if row["group"] == groups[-1]],
    )


def _delivered(row: Result) -> list[str]:
    tau = "" if row["tau"] is None else f"{row['tau']:.2f}"
    differing = f"{row['differing']} of {row['answers']}"
    return [f"`{row['setting']}`", tau, str(row["tokens"]), rules(row["loosened"]) or "0", differing]


def _by_clients(rows: list[Result]) -> str:
    """Every setting's throughput against its own with the fewest clients, on the same prompts; and against `off`'s."""
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    sizes = sorted({row["concurrency"] for row in rows})
    found = {(row["setting"], row["concurrency"]): row for row in rows}
    compared = [name for name in settings if any(row["over_off"] for row in rows if row["setting"] == name)]
    lines = []
    for size in sizes:
        mine = {name: found[name, size] for name in settings if (name, size) in found}
        gains = [_spread(mine[name]["gain"]) if name in mine else "" for name in settings]
        over = [_spread(mine[name]["over_off"]) if name in mine else "" for name in compared]
        lines.append([str(size), str(next(iter(mine.values()))["sets"]), *gains, *over])
    last = {row["setting"]: row for row in rows}
    rises = ["rises throughout", "", *(_rises(last[name]) for name in settings), *([""] * len(compared))]
    head = [f"`{name}` against {sizes[0]} client{'s' * (sizes[0] > 1)}" for name in settings]
    return markdown(["clients", "sets", *head, *(f"`{name}` against `off`" for name in compared)], [*lines, rises])


def _rises(row: Result) -> str:
    return "" if row["rises"] is None else "yes" if row["rises"] else "no"


def _peers(result: Result) -> Iterable[str]:
    """Ours over theirs: a line an engine, a column a group of prompts and number of clients."""
    rows = [row for row in result["summary"] if not row["runner"].startswith("ours:")]
    columns = list(dict.fromkeys((row["group"], row["concurrency"]) for row in rows))
    for ours in dict.fromkeys(name for row in rows for name in row["ratios"]):
        lines = []
        for runner in dict.fromkeys(row["runner"] for row in rows):
            found = [_find(rows, runner=runner, group=group, concurrency=size) for group, size in columns]
            lines.append([runner, *(_peer_cell(row, ours) for row in found)])
        head = [f"{group}, {size} client{'s' if size > 1 else ''}" for group, size in columns]
        yield markdown([f"`{ours}` over", *head], lines)


def _peer_cell(row: Result | None, ours: str) -> str:
    """The ratio with its spread and number of samples; of a best mode also which it is."""
    if row is None or ours not in row["ratios"]:
        return ""
    told = f"{_spread(row['ratios'][ours])}, n = {row['samples']}"
    return f"{told}: {row['best']}" if row["best"] else told


def _weights(result: Result) -> Iterable[str]:
    """Quality and time of each kind of weights, times as ratios to the first kind's."""
    kinds = result["kinds"]
    base = next(iter(kinds))
    sizes = list(kinds[base]["milliseconds"])
    head = ["weights", "mean KL (nats)", "same best token", "step against reading the weights"]
    head += [f"time of {size} row{'s' * (size != '1')}, {base} = 1" for size in sizes]
    lines = []
    for kind, found in kinds.items():
        times = [found["milliseconds"][size]["median"] / kinds[base]["milliseconds"][size]["median"] for size in sizes]
        quality = [f"{found['kl']:.5f}", f"{found['top1_agreement']:.1%}", _spread(found["step_over_reading"])]
        lines.append([f"`{kind}`", *quality, *(f"{one:.2f}" for one in times)])
    yield markdown(head, lines)
    if engine := result.get("engine_off"):
        yield f"`off` through the engine, against reading its weights: {_spread(engine['step_over_reading'])}.\n"


def _evaluation(result: Result) -> Iterable[str]:
    """Scores, what they are of `off`'s, and what was delivered for it; a line a task and setting."""
    lines = []
    for row in result["summary"]:
        interval = "" if row["interval"] is None else "{:.1%}..{:.1%}".format(*row["interval"])
        lines.append(
            [
                row["group"],
                f"`{row['setting']}`",
                str(row["items"]),
                share(row["score"]),
                share(row["recovery"]),
                interval,
                "" if row["tau"] is None else f"{row['tau']:.2f}",
                rules(row["loosened"]),
                share(row["equal"]),
                "" if row["measured_speedup"] is None else f"{row['measured_speedup']:.2f}x",
            ]
        )
    head = ["task", "setting", "n", "score", "recovery", "95 %", "tau", "loosened", "`off`'s to the letter"]
    yield markdown([*head, f"speed against `off`, {result['clients']} clients"], lines)
    if not result["complete"]:
        known = result["items"]
        yield f"So far: {known['answered under every setting']} of {known['asked for']} items.\n"


def _figures(result: Result) -> Iterable[str]:
    yield markdown(["what", "value"], [list(pair) for pair in flat(result["figures"])])


_WRITERS: dict[str, Callable[[Result], Iterable[str]]] = {
    "speed": _speed,
    "evaluation": _evaluation,
    "peers": _peers,
    "weights": _weights,
    "costs": _figures,
    "company": _figures,
    "footprint": _figures,
}


def _find(rows: Iterable[Result], **wanted: Any) -> Result | None:
    return next((row for row in rows if all(row[key] == value for key, value in wanted.items())), None)


def _with_mean(spread: Result | None) -> str:
    if not spread or spread["min"] == spread["max"]:
        return _spread(spread)
    return f"{spread['median']:.2f}x, mean {spread['mean']:.2f}x {_extent(spread)}"


def _category_mean(row: Result | None) -> str:
    return "" if row is None or row["category_mean"] is None else f"{row['category_mean']:.2f}x"


def _spread(spread: Result | None) -> str:
    """One sample has no spread to tell."""
    if not spread:
        return ""
    return f"{spread['median']:.2f}x" + (f" {_extent(spread)}" if spread["min"] != spread["max"] else "")


def _extent(spread: Result) -> str:
    return f"({spread['min']:.2f}..{spread['max']:.2f})"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("readme", nargs="?", type=Path, default=Path("README.md"))
    options = parser.parse_args(arguments)
    try:
        refresh(options.readme, options.results)
    except (BenchError, OSError) as error:
        print(f"benchmarks.readme: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
