"""Write the README's figures from the result files.

    python -m benchmarks.readme                          from benchmarks/results into README.md
    python -m benchmarks.readme FOLDER FILE

What stands between the two markers is replaced; everything else stays. A figure that no file tells is not written.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import one_line
from benchmarks.tables import flat, markdown

BEGIN, END = "<!-- figures: written by python -m benchmarks.readme -->", "<!-- end of figures -->"
_ORDER = ("speed", "peers", "costs", "company", "footprint")

Result = Mapping[str, Any]


def refresh(readme: Path, results: Path) -> None:
    """Replace the figures. ValueError without the markers or without any result."""
    text = readme.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme} lacks the markers {BEGIN} and {END}")
    found = [(path, result) for path in sorted(results.glob("*.json")) if "kind" in (result := _read(path))]
    if not found:
        raise ValueError(f"{results} holds no results")
    found.sort(key=lambda pair: _ORDER.index(pair[1]["kind"]))
    parts = [_section(path, result, readme.parent) for path, result in found]
    readme.write_text(before + begin + "\n" + "\n".join(parts) + end + after, "utf-8")


def _read(path: Path) -> Result:
    result = json.loads(path.read_text("utf-8"))
    return result if isinstance(result, dict) else {}


def _section(path: Path, result: Result, root: Path) -> str:
    where = path.resolve().relative_to(root.resolve()) if path.resolve().is_relative_to(root.resolve()) else path
    told = f"{result['date']} on {one_line(result['machine'])}; [raw results]({where.as_posix()})"
    tables = "\n".join(filter(None, _WRITERS[result["kind"]](result)))
    return f"{result['title']} ({told}):\n\n{tables}"


def _speed(result: Result) -> Iterable[str]:
    """By kind of prompt at one client; by clients over all prompts."""
    rows = result["summary"]
    alone = [row for row in rows if row["concurrency"] == 1 and row["ratio"]]
    settings = list(dict.fromkeys(row["setting"] for row in alone))
    if alone:
        lines = [
            [group, *(_ratio(_find(alone, group=group, setting=setting)) for setting in settings)]
            for group in dict.fromkeys(row["group"] for row in alone)
        ]
        yield markdown(["one client, against `off`", *(f"`{name}`" for name in settings)], lines)
    yield _by_clients(rows)


def _by_clients(rows: list[Result]) -> str:
    """`off` together against `off` alone, and every setting against `off` of as many clients."""
    widest = {"all": 2, "mixed": 1}
    sizes = sorted({row["concurrency"] for row in rows})
    names = list(dict.fromkeys(row["setting"] for row in rows if row["ratio"]))
    if len(sizes) < 2:
        return ""
    chosen: dict[tuple[int, str], Result] = {}
    for row in sorted(rows, key=lambda row: widest.get(row["group"], 0)):
        chosen[row["concurrency"], row["setting"]] = row
    base = _median(chosen.get((sizes[0], "off")), "rate")
    lines = []
    for size in sizes:
        together = _median(chosen.get((size, "off")), "rate")
        gain = f"{together / base:.2f}x" if together and base else ""
        lines.append([str(size), gain, *(_ratio(chosen.get((size, name))) for name in names)])
    return markdown(
        ["clients", f"`off` against {sizes[0]} client", *(f"`{name}` against `off`" for name in names)], lines
    )


def _peers(result: Result) -> Iterable[str]:
    """Ours over theirs: a line an engine, a column a group of prompts and number of clients."""
    rows = [row for row in result["summary"] if not row["runner"].startswith("ours:")]
    columns = list(dict.fromkeys((row["group"], row["concurrency"]) for row in rows))
    for ours in dict.fromkeys(name for row in rows for name in row["ratios"]):
        lines = []
        for runner in dict.fromkeys(row["runner"] for row in rows):
            cells = [
                _spread(
                    (_find(rows, runner=runner, group=group, concurrency=size) or {"ratios": {}})["ratios"].get(ours)
                )
                for group, size in columns
            ]
            lines.append([runner, *cells])
        head = [f"{group}, {size} client{'s' if size > 1 else ''}" for group, size in columns]
        yield markdown([f"`{ours}` over", *head], lines)


def _figures(result: Result) -> Iterable[str]:
    yield markdown(["what", "value"], [list(pair) for pair in flat(result["figures"])])


_WRITERS: dict[str, Callable[[Result], Iterable[str]]] = {
    "speed": _speed,
    "peers": _peers,
    "costs": _figures,
    "company": _figures,
    "footprint": _figures,
}


def _find(rows: Iterable[Result], **wanted: Any) -> Result | None:
    return next((row for row in rows if all(row[key] == value for key, value in wanted.items())), None)


def _median(row: Result | None, name: str) -> float | None:
    return None if row is None or row[name] is None else float(row[name]["median"])


def _ratio(row: Result | None) -> str:
    return "" if row is None else _spread(row["ratio"])


def _spread(spread: Result | None) -> str:
    return "" if spread is None else f"{spread['median']:.2f}x ({spread['min']:.2f}..{spread['max']:.2f})"


def main(arguments: list[str]) -> int:
    results, readme = (Path(one) for one in (arguments or ["benchmarks/results", "README.md"]))
    try:
        refresh(readme, results)
    except ValueError as error:
        print(f"benchmarks.readme: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
