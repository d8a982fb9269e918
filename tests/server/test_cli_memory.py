"""`slipstream memory` and `slipstream calibrate` as commands: what they print, what they refuse, their exit codes."""

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from core.correction_memory import PROPOSERS, CorrectionMemory
from core.correction_origin import MemoryOrigin, sample_id
from core.correction_table import MemorySnapshot, pair_key
from core.models.checkpoint import fingerprint
from server.cli import app
from server.memory_store.text import Proposer
from tests.server import serving
from tests.server.memory_store.test_store import held
from tests.server.test_assembly import save_pair
from tests.server.test_cli import slipstream, write_config

PAIRS = {(10, 11): 9, (10, 12): 4, (13, 11): 1}


def memory(prompts: tuple[str, ...] = ("a", "b"), target: str = "T", **pairs: int) -> CorrectionMemory:
    counts = {pair_key(*pair): count for pair, count in PAIRS.items()}
    table = MemorySnapshot(recent=counts, calibrated_samples=len(prompts), calibrated_tokens=500).fold()
    ids = np.array(sorted(map(sample_id, prompts)), np.int64)
    run = {"began": "2026-11-30", "target": {"name": "big"}, "prompts": [{"file": "tasks.jsonl"}], "samples": 2}
    return CorrectionMemory(target, "D", tables={"model": table}, origin=MemoryOrigin((run,), ids))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["memory", *map(str, arguments)])


def ok(*arguments: object) -> str:
    outcome = run(*arguments)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def refused(*arguments: object) -> str:
    outcome = run(*arguments)
    assert outcome.exit_code == 1, outcome.output
    assert outcome.stderr.startswith("slipstream: ")
    return outcome.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    memory().save(tmp_path / "m.npz")
    return tmp_path / "m.npz"


def test_show_tells_what_it_is_made_of_and_the_most_frequent_pairs(file: Path) -> None:
    shown = ok("show", file, "--top", 2)
    assert "run: 2026-11-30, big, " in shown
    assert (
        "model: 3 pairs, 14 rejections in 2 samples, 500 tokens; 1 pairs occur at least 6 times: 64% of these" in shown
    )
    assert [line.split() for line in shown.splitlines()[-2:]] == [["10", "11", "9"], ["10", "12", "4"]]
    assert "prompt_lookup" not in shown


def test_show_with_a_configuration_gives_the_tokens_text_and_kind(file: Path, tmp_path: Path) -> None:
    save_pair(tmp_path / "target")
    fast = serving.tokenizer()
    the, and_, end = (fast.convert_tokens_to_ids(token) for token in ("Ġthe", "Ġand", "<|im_end|>"))
    table = MemorySnapshot(recent={pair_key(the, and_): 3, pair_key(end, the): 1}).fold()
    config = write_config(tmp_path, models={"target": {"source": str(tmp_path / "target")}})
    assert "of target 'T'" in refused("show", file, "--config", config)  # its ids would mean other words there
    CorrectionMemory(fingerprint(tmp_path / "target"), "D", tables={"prompt_lookup": table}).save(file)
    shown = ok("show", file, "--config", config)
    assert '" the"                 " and"                      3  connective' in shown
    assert '"<|im_end|>"           " the"                      1  control' in shown
    assert "connective 75%, control 25%" in shown


def test_export_and_import_give_the_same_memory_in_a_file_or_a_database(file: Path, tmp_path: Path) -> None:
    text = tmp_path / "m.jsonl"
    assert "3 pairs" in ok("export", file, text)
    assert json.loads(text.read_text().splitlines()[1]) == {"proposer": "model", "draft": 10, "target": 11, "count": 9}
    assert "--force replaces it" in refused("export", file, text)
    for place in (tmp_path / "again.npz", f"sqlite:///{tmp_path}/m.db"):
        ok("import", text, place)
        assert "--merge adds to it" in refused("import", text, place)
        ok("import", text, place, "--merge")
        ok("export", place, text, "--force")
        lines = [json.loads(line) for line in text.read_text().splitlines()]
        assert lines[0]["tables"]["model"] == {"samples": 4, "tokens": 1000, "pairs": 3}
        assert sorted(lines[0]["samples"]) == sorted(map(sample_id, "ab"))
        assert [line["count"] for line in lines[1:]] == [18, 8, 2]
        ok("export", file, text, "--force")


@pytest.mark.parametrize(
    ("number", "line", "complaint"),
    [
        (0, "{}", "line 1: format: "),
        (1, '{"proposer": "model", "draft": 10, "target": 11}', "line 2: count: Field required"),
        (1, '{"proposer": "model", "draft": -1, "target": 11, "count": 1}', "line 2: draft: "),
        (1, '{"proposer": "eagle", "draft": 1, "target": 11, "count": 1}', "line 2: proposer: "),
        (1, '{"proposer": "model", "draft": 10, "target": 12, "count": 1}', "line 3: this pair was there before"),
        (1, "oops", "line 2: Invalid JSON"),
        (3, "", "holds 2 pairs of model, its first line says 3"),
    ],
)
def test_an_import_is_checked_before_anything_is_written(
    file: Path, tmp_path: Path, number: int, line: str, complaint: str
) -> None:
    text, out = tmp_path / "m.jsonl", tmp_path / "out.npz"
    ok("export", file, text)
    lines = text.read_text().splitlines()
    lines[number] = line
    text.write_text("\n".join(lines) + "\n")
    assert complaint in refused("import", text, out)
    assert not out.exists()


def test_prune_takes_the_rare_pairs_out(file: Path) -> None:
    assert "say what is to go" in refused("prune", file)
    assert "1 pairs taken out" in ok("prune", file, "--min-count", 2)
    assert "1 pairs taken out" in ok("prune", file, "--keep", 1)
    assert held(CorrectionMemory.load(file).snapshot("model")) == {pair_key(10, 11): 9}


def test_merge_adds_up_and_notes_prompts_that_count_twice(file: Path, tmp_path: Path) -> None:
    memory(("b", "c")).save(tmp_path / "other.npz")
    outcome = run("merge", file, tmp_path / "other.npz", "--out", tmp_path / "sum.npz")
    assert "note: 1 prompts of" in outcome.stderr
    loaded = CorrectionMemory.load(tmp_path / "sum.npz")
    assert loaded.snapshot("model").count(10, 11) == 18
    assert loaded.origin.samples.size == 3
    assert "would be added to itself" in refused("merge", file, "--out", file)
    memory(target="X").save(tmp_path / "foreign.npz")
    assert "of target 'X', not 'T'" in refused("merge", file, tmp_path / "foreign.npz", "--out", tmp_path / "no.npz")


@pytest.mark.parametrize("command", [("show",), ("prune", "--keep", "1"), ("export", "out.jsonl")])
def test_a_memory_that_is_not_there_is_one_line_and_exit_code_1(tmp_path: Path, command: tuple[str, ...]) -> None:
    name, *rest = command
    assert refused(name, tmp_path / "none.npz", *rest).count("\n") == 1
    assert refused(name, f"sqlite:///{tmp_path}/none.db", *rest).count("\n") == 1


def test_calibrate_makes_a_memory_that_show_reads(tmp_path: Path) -> None:
    save_pair(tmp_path / "target")
    models = {"target": {"source": str(tmp_path / "target"), "device": "cpu"}}
    config = write_config(tmp_path, models=models, kv_cache={"tokens": 1024})
    (tmp_path / "prompts.txt").write_text("the quick brown fox\nthe lazy dog\n")
    out = tmp_path / "m.npz"
    arguments = ("calibrate", "-c", config, "-p", tmp_path / "prompts.txt", "-o", out, "--max-tokens", "40")
    outcome = slipstream(*arguments)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr.count("INFO") >= 2, "it says what it loads"
    assert "prompts counted: 2" in outcome.stdout
    assert "prompt_lookup: " in outcome.stdout
    assert "prompt_lookup: " in ok("show", out)


def test_text_names_the_proposers_there_are() -> None:
    assert get_args(Proposer) == PROPOSERS
