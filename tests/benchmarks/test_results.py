"""Tables, result files and the README's figures."""

import json
from pathlib import Path

import pytest

from benchmarks import plots, readme
from benchmarks.interleave import MIXED
from benchmarks.peer_summary import PEER_HEAD, PeerRun, compare, peer_cells
from benchmarks.results_file import Results
from benchmarks.samples import summarise
from benchmarks.tables import SPEED_HEAD, flat, markdown, speed_cells
from tests.benchmarks.test_samples import sample


def test_markdown_leaves_out_empty_columns_and_escapes_bars() -> None:
    text = markdown(("a", "b", "c"), [("1", "", "x|y"), ("2", "", "")])
    assert text.splitlines() == ["| a | c |", "| --- | --- |", "| 1 | x\\|y |", "| 2 |  |"]


def test_nested_figures_become_lines() -> None:
    assert flat({"a_b": {"c": 1.23456, "d": [1]}, "e": 3, "f": None}) == [("a b c", "1.235"), ("e", "3")]


def speed_file(folder: Path) -> Path:
    samples = [
        sample("humaneval", "off", None),
        sample("humaneval", "strict", 2.0, rounds=2, round_tokens=9, draft_tokens=10, accepted_tokens=7),
        sample("humaneval", "fly", 2.5, rounds=2, round_tokens=10, draft_tokens=10, accepted_tokens=8),
        sample(MIXED, "off", None, clients=2),
        sample(MIXED, "strict", 0.75, clients=2),
    ]
    rows = summarise(samples)
    content = {"summary": [row.as_dict() for row in rows], "samples": [one.as_dict() for one in samples]}
    return Results(folder, "speed").write("speed", "Speed", content, SPEED_HEAD, [speed_cells(row) for row in rows])


def peers_file(folder: Path) -> Path:
    rates = {"ours:strict": 12.0, "ours:off": 6.0, "llama.cpp:plain": 8.0, "transformers:assisted": 3.0}
    runs = [
        PeerRun("humaneval", ("h",), 1, name, name.startswith("ours"), 0, 9, rate, 0.1) for name, rate in rates.items()
    ]
    rows = compare(runs)
    content = {"summary": [row.as_dict() for row in rows], "runs": [run.as_dict() for run in runs]}
    return Results(folder, "peers").write("peers", "Peers", content, PEER_HEAD, [peer_cells(row) for row in rows])


def test_a_result_file_says_where_and_when_beside_every_sample(tmp_path: Path) -> None:
    written = json.loads(speed_file(tmp_path / "new").read_text())
    assert {"kind", "date", "machine", "versions", "commit", "summary", "samples"} <= written.keys()
    assert {"cpu", "cores", "threads", "flags", "memory_gib"} <= written["machine"].keys()
    assert written["versions"]["torch"]
    assert written["samples"][1]["ratio"] == 2.0
    assert written["samples"][1]["tau"] == 4.5
    table = (tmp_path / "new" / "speed.md").read_text()
    assert "| humaneval | 1 | strict | 2.00x | 2.00..2.00 |" in table
    assert not list((tmp_path / "new").glob("*.tmp"))


def test_plots_are_png_files(tmp_path: Path) -> None:
    rows = summarise([sample("a", "off", None), sample("a", "strict", 2.0), sample(MIXED, "off", None, clients=2)])
    drawn = plots.draw(rows, tmp_path, "x")
    assert [path.name for path in drawn] == ["x-ratios.png", "x-throughput.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    assert [path.name for path in plots.draw(rows[:2], tmp_path, "y")] == ["y-ratios.png"]


def test_peers_are_compared_on_the_same_prompt() -> None:
    runs = [
        PeerRun("a", ("a/0",), 1, name, name.startswith("ours"), turn, 9, rate, 0.1)
        for turn, rates in enumerate([{"ours:strict": 10.0, "theirs": 5.0}, {"ours:strict": 3.0, "theirs": 4.0}])
        for name, rate in rates.items()
    ]
    theirs = next(row for row in compare(runs) if row.runner == "theirs")
    spread = theirs.ratios["strict"]
    assert (spread.min, spread.max, spread.median) == (0.75, 2.0, 1.375)
    assert theirs.rate is not None
    assert theirs.rate.median == 4.5


def test_the_readme_gets_the_figures_of_the_files_and_keeps_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    speed_file(tmp_path / "results")
    peers_file(tmp_path / "results")
    (tmp_path / "results" / "older.json").write_text("{}")
    readme.refresh(page, tmp_path / "results")
    text = page.read_text()
    assert text.startswith(f"before\n{readme.BEGIN}\n")
    assert text.endswith(f"{readme.END}\nafter\n")
    assert "old" not in text.partition(readme.BEGIN)[2]
    assert "| humaneval | 2.00x (2.00..2.00) | 2.50x (2.50..2.50) |" in text
    assert "| 2 | 1.00x | 0.75x (0.75..0.75) |  |" in text
    assert "| llama.cpp:plain | 1.50x (1.50..1.50) |" in text
    assert "| transformers:assisted | 4.00x (4.00..4.00) |" in text
    assert "](results/speed.json)" in text
    once = text
    readme.refresh(page, tmp_path / "results")
    assert page.read_text() == once


def test_a_readme_without_markers_or_results_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("text")
    speed_file(tmp_path / "results")
    with pytest.raises(ValueError, match="lacks the markers"):
        readme.refresh(page, tmp_path / "results")
    assert page.read_text() == "text"
    assert readme.main([str(tmp_path / "nothing"), str(page)]) == 1
