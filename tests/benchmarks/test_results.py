"""Tables, result files and the README's figures."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import plots, readme
from benchmarks.errors import BenchError
from benchmarks.evaluation.summary import Row
from benchmarks.interleave import MIXED
from benchmarks.peer_summary import PEER_HEAD, PeerRun, compare, peer_cells
from benchmarks.results_file import Results, Table
from benchmarks.samples import Sample, summarise
from benchmarks.scaling import SCALING_HEAD, scaling, scaling_cells
from benchmarks.tables import SPEED_HEAD, flat, markdown, speed_cells
from tests.benchmarks.test_samples import sample
from tests.conftest import ROOT


def test_markdown_leaves_out_empty_columns_and_escapes_bars() -> None:
    text = markdown(("a", "b", "c"), [("1", "", "x|y"), ("2", "", "")])
    assert text.splitlines() == ["| a | c |", "| --- | --- |", "| 1 | x\\|y |", "| 2 |  |"]


def test_nested_figures_become_lines() -> None:
    assert flat({"a_b": {"c": 1.23456, "d": [1]}, "e": 3, "f": None}) == [("a b c", "1.235"), ("e", "3")]


def speed_file(folder: Path) -> Path:
    fly = sample("humaneval", "fly", 2.5, rounds=2, round_tokens=10, draft_tokens=10, accepted_tokens=8)
    alone = [
        sample("humaneval", "off", None),
        sample("humaneval", "strict", 2.0, rounds=2, round_tokens=9, draft_tokens=10, accepted_tokens=7),
        replace(fly, strict_ratio=1.25, differing=1, speculated=replace(fly.speculated, loosened={"deferred": 3})),
    ]
    together = [sample(MIXED, "off", None, clients=2), sample(MIXED, "strict", 0.75, clients=2)]
    samples = [
        *(replace(one, set_index=0) for one in [*alone, *alone]),
        *(replace(one, set_index=0, tokens=16, rate=4.0) for one in together),
    ]
    rows, by_clients = summarise(samples), scaling(samples, "off")
    content = {
        "summary": [row.as_dict() for row in rows],
        "by_clients": [row.as_dict() for row in by_clients],
        "samples": [one.as_dict() for one in samples],
    }
    tables = [
        Table(SPEED_HEAD, [speed_cells(row) for row in rows]),
        Table(SCALING_HEAD, [scaling_cells(row) for row in by_clients], "By clients"),
    ]
    return Results(folder, "speed").write("speed", "Speed", content, tables)


def peers_file(folder: Path) -> Path:
    rates = {"ours:strict": 12.0, "ours:off": 6.0, "llama.cpp:plain": 8.0, "transformers:assisted": 3.0}
    runs = [
        PeerRun("humaneval", ("h",), 1, name, name.startswith("ours"), 0, 9, rate, 0.1) for name, rate in rates.items()
    ]
    rows = compare(runs)
    content = {"summary": [row.as_dict() for row in rows], "runs": [run.as_dict() for run in runs]}
    return Results(folder, "peers").write(
        "peers", "Peers", content, [Table(PEER_HEAD, [peer_cells(row) for row in rows])]
    )


def test_a_result_file_says_where_and_when_beside_every_sample(tmp_path: Path) -> None:
    written = json.loads(speed_file(tmp_path / "new").read_text())
    assert {"kind", "date", "machine", "versions", "commit", "summary", "samples"} <= written.keys()
    assert {"cpu", "cores", "threads", "flags", "memory_gib"} <= written["machine"].keys()
    assert written["versions"]["torch"]
    assert written["samples"][1]["ratio"] == 2.0
    assert written["samples"][1]["tau"] == 4.5
    table = (tmp_path / "new" / "speed.md").read_text()
    assert "| humaneval | 1 | strict | 2.00x | 2.00x | 2.00..2.00 |" in table
    assert "## By clients" in table
    assert {path.suffix for path in (tmp_path / "new").iterdir()} == {".json", ".md"}


def test_what_is_known_so_far_is_kept_until_the_whole_is_written(tmp_path: Path) -> None:
    results = Results(tmp_path, "speed")
    results.keep("speed", "Speed", {"samples": [1]})
    results.keep("speed", "Speed", {"samples": [1, 2]})
    kept = json.loads(results.partial.read_text())
    assert (kept["complete"], kept["samples"], kept["kind"]) == (False, [1, 2], "speed")
    assert not list(tmp_path.glob("*.json"))
    speed_file(tmp_path)
    assert not results.partial.exists()


def alike(clients: int, setting: str, set_index: int, seconds: list[float]) -> list[Sample]:
    """A set of four prompts with 8 tokens each, in as many units as there are seconds."""
    tokens = 32 // len(seconds)
    one = sample(MIXED, setting, None, clients=clients)
    return [replace(one, set_index=set_index, tokens=tokens, rate=tokens / spent) for spent in seconds]


def test_throughput_by_clients_is_paired_by_the_set_of_prompts() -> None:
    samples = [
        *alike(1, "off", 0, [1.0, 1.0, 1.0, 5.0]),
        *alike(2, "off", 0, [1.0, 3.0]),
        *alike(4, "off", 0, [2.0]),
        *alike(1, "off", 1, [1.0, 1.0, 1.0, 1.0]),
        *alike(2, "off", 1, [1.0, 1.0]),
        *alike(4, "off", 1, [4.0]),
        *alike(1, "strict", 0, [1.0, 1.0, 1.0, 1.0]),
        sample("alone", "off", None),
    ]
    rows = {(row.setting, row.concurrency): row for row in scaling(samples, "off")}
    assert rows.keys() == {("off", 1), ("off", 2), ("off", 4), ("strict", 1)}
    assert rows["off", 1].rate.max == 8.0
    two, four, strict = rows["off", 2], rows["off", 4], rows["strict", 1]
    assert two.gain is not None
    assert (two.gain.min, two.gain.max, two.rises) == (2.0, 2.0, True)
    assert four.gain is not None
    assert (four.gain.min, four.gain.max) == (1.0, 4.0)
    assert four.step is not None
    assert (four.step.median, four.rises) == (1.25, True)
    assert strict.over_off is not None
    assert (strict.over_off.median, strict.sets) == (2.0, 1)


def test_a_number_of_clients_that_gives_less_than_fewer_is_told() -> None:
    samples = [*alike(1, "off", 0, [1.0] * 4), *alike(2, "off", 0, [3.0, 3.0]), *alike(4, "off", 0, [1.0])]
    assert [row.rises for row in scaling(samples, "off")] == [None, False, False]
    assert scaling(alike(1, "off", 0, [1.0] * 4), "off") == []


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
    (tmp_path / "results" / "lengths.json").write_text('{"kind": "draft-length"}')
    readme.refresh(page, tmp_path / "results")
    text = page.read_text()
    assert text.startswith(f"before\n{readme.BEGIN}\n")
    assert text.endswith(f"{readme.END}\nafter\n")
    assert "old" not in text.partition(readme.BEGIN)[2]
    assert (
        "one client's answers come 2.00x under `strict`, 2.50x under `fly` as fast; with 2 clients it is 1.00x" in text
    )
    assert "| humaneval | 2 | 2.00x | 2.50x | 1.25x |" in text
    assert "| `fly` | 5.00 | 16 | 6 deferred | 2 of 2 |" in text
    assert "| 2 | 1 | 2.00x | 2.00x | 1.00x |  |" in text
    assert "| rises throughout |  | yes | yes |" in text
    assert "| llama.cpp:plain | 1.50x, n = 1 |" in text
    assert "| transformers:assisted | 4.00x, n = 1 |" in text
    assert "](results/speed.json)" in text
    once = text
    readme.refresh(page, tmp_path / "results")
    assert page.read_text() == once


def evaluation_file(folder: Path, complete: bool) -> Path:
    scored = Row(
        "gsm8k",
        "fly K=15",
        40,
        40,
        0.5,
        0.975,
        (0.9, 1.05),
        0.9,
        0.875,
        11.6,
        0.7,
        {"deferred": 3},
        9000,
        1.0,
        0.25,
        0.5,
        0.0,
    )
    content = {
        "max_tokens": 512,
        "clients": 8,
        "complete": complete,
        "items": {"asked for": 200, "answered under every setting": 40},
        "summary": [scored.as_dict()],
    }
    return Results(folder, "evaluation").write("evaluation", "Accuracy", content, [])


@pytest.mark.parametrize("complete", [True, False])
def test_the_readme_tells_what_a_verifier_costs_in_accuracy(tmp_path: Path, complete: bool) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"{readme.BEGIN}\n{readme.END}\n")
    evaluation_file(tmp_path / "results", complete)
    readme.refresh(page, tmp_path / "results")
    text = page.read_text()
    line = "| gsm8k | `fly K=15` | 40 | 50.0% | 97.5% | 90.0%..105.0% | 11.60 | 3 deferred | 25.0% | 0.88x |"
    assert line in text
    assert "answers of at most 512 tokens" in text
    assert "8 clients" in text
    assert ("So far: 40 of 200 items." in text) != complete


def test_a_readme_without_markers_or_results_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("text")
    speed_file(tmp_path / "results")
    with pytest.raises(BenchError, match="lacks the markers"):
        readme.refresh(page, tmp_path / "results")
    assert page.read_text() == "text"
    assert readme.main([str(tmp_path / "nothing"), str(page)]) == 1


def test_a_result_of_an_unknown_kind_is_named(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"{readme.BEGIN}\n{readme.END}\n")
    (tmp_path / "older.json").write_text('{"batch": {}}')
    with pytest.raises(BenchError, match=r"older\.json is a result of kind None; known are speed, evaluation"):
        readme.refresh(page, tmp_path)


def test_the_projects_own_readme_says_what_its_result_files_say(tmp_path: Path) -> None:
    page, results = tmp_path / "README.md", tmp_path / "benchmarks" / "results"
    shutil.copy(ROOT / "README.md", page)
    shutil.copytree(ROOT / "benchmarks" / "results", results)
    assert readme.main([str(results), str(page)]) == 0
    assert page.read_text() == (ROOT / "README.md").read_text(), "run python -m benchmarks.readme"
    assert "| `int8_split` |" in page.read_text()


def peer_runs(rates: dict[str, list[float]], clients: int = 1) -> list[PeerRun]:
    return [
        PeerRun("a", ("a/0",), clients, name, name.startswith("ours"), turn, 9, rate, 0.1, (f"{name[:4]}{turn}",))
        for name, mine in rates.items()
        for turn, rate in enumerate(mine)
    ]


def test_the_best_of_llama_cpps_modes_is_the_one_that_ours_is_least_ahead_of() -> None:
    rates = {
        "ours:off": [1.0, 1.0],
        "ours:strict": [6.0, 8.0],
        "llama.cpp:plain": [2.0, 2.0],
        "llama.cpp:draft:n_max=8": [3.0, 8.0],
    }
    rows = {row.runner: row for row in compare(peer_runs(rates))}
    best = rows["llama.cpp:best"]
    assert best.best == "draft:n_max=8"
    assert best.ratios["strict"].median == 1.5
    assert best.samples == 2
    assert "llama.cpp:best" not in {row.runner for row in compare(peer_runs({"llama.cpp:plain": [1.0]}))}


def test_answers_are_compared_with_our_off_ones() -> None:
    rows = {
        row.runner: row for row in compare(peer_runs({"ours:off": [1.0] * 3, "ours:strict": [2.0] * 3, "x": [1.0]}))
    }
    assert (rows["ours:strict"].equal, rows["ours:strict"].compared, rows["ours:strict"].tokens) == (3, 3, 27)
    assert (rows["x"].equal, rows["x"].compared) == (0, 1)
    assert rows["ours:off"].compared == 0
