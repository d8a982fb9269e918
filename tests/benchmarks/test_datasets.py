import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import datasets
from benchmarks.datasets import FILES, DataError, load, load_what_is_there

CATEGORIES = ("writing", "qa")
RECORDS: dict[str, list[dict[str, Any]]] = {
    "humaneval": [{"task_id": f"HumanEval/{i}", "prompt": f"def f{i}():\n"} for i in range(10)],
    "gsm8k": [{"question": f"How much is {i} and {i}?", "answer": "#### 0"} for i in range(4)],
    "spec-bench": [
        {"question_id": i, "category": CATEGORIES[i % 2], "turns": [f"first {i}", f"second {i}"]} for i in range(6)
    ],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small data sets under the real names, with checksums of their own and no way to fetch them."""
    files = {}
    for name, records in RECORDS.items():
        raw = "".join(json.dumps(record) + "\n" for record in records).encode()
        raw = gzip.compress(raw) if FILES[name].name.endswith(".gz") else raw
        (tmp_path / FILES[name].name).write_bytes(raw)
        digest = hashlib.sha256(raw).hexdigest()
        files[name] = replace(FILES[name], sha256=digest, url="http://127.0.0.1:1/nothing", pypi=None)
    monkeypatch.setattr(datasets, "FILES", files)
    monkeypatch.setenv("BENCH_DATA_DIR", str(tmp_path))
    return tmp_path


def test_a_number_takes_evenly_spaced_prompts(folder: Path) -> None:
    assert [prompt.name for prompt in load(["humaneval:3"])] == ["HumanEval/0", "HumanEval/3", "HumanEval/6"]
    assert len(load(["humaneval"])) == len(load(["humaneval:99"])) == 10


def test_humaneval_asks_for_the_function_as_it_stands(folder: Path) -> None:
    (prompt,) = load(["humaneval:1"])
    assert "```python\ndef f0():\n```" in prompt.text
    assert (prompt.category, prompt.dataset) == ("humaneval", "humaneval")


def test_spec_bench_counts_by_category_and_takes_first_turns(folder: Path) -> None:
    prompts = load(["spec-bench:2"])
    assert [prompt.category for prompt in prompts] == ["spec-bench/writing"] * 2 + ["spec-bench/qa"] * 2
    assert all(prompt.text.startswith("first ") for prompt in prompts)
    assert {prompt.dataset for prompt in prompts} == {"spec-bench"}
    assert [prompt.text for prompt in load(["spec-bench/qa"])] == ["first 1", "first 3", "first 5"]


def test_prompts_that_were_measured_are_not_calibrated_on(folder: Path) -> None:
    measured = {prompt.text for prompt in load(["gsm8k:2"])}
    others = load(["gsm8k:2"], besides=measured)
    assert len(others) == 2
    assert not measured & {prompt.text for prompt in others}


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"prompt": "one"}, "one"),
        ({"question": "two", "answer": "2"}, "two"),
        ({"turns": ["three", "four"]}, "three"),
    ],
)
def test_a_file_of_ones_own_may_call_its_prompts_as_it_likes(folder: Path, record: dict[str, Any], text: str) -> None:
    file = folder / "mine.jsonl"
    file.write_text(json.dumps(record) + "\n\n" + json.dumps({**record, "category": "odd"}) + "\n")
    prompts = load([str(file)])
    assert [prompt.text for prompt in prompts] == [text, text]
    assert [prompt.category for prompt in prompts] == ["mine", "mine/odd"]


def test_a_file_that_was_changed_is_refused(folder: Path) -> None:
    file = folder / FILES["gsm8k"].name
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(DataError, match=r"gsm8k_test\.jsonl has sha256 .* delete it"):
        load(["gsm8k"])


def test_what_cannot_be_fetched_says_where_to_put_it_and_leaves_nothing(folder: Path) -> None:
    (folder / FILES["gsm8k"].name).unlink()
    with pytest.raises(DataError, match=r"put gsm8k_test\.jsonl into"):
        load(["gsm8k"])
    assert not list(folder.glob("gsm8k*"))


def test_the_rest_goes_on_without_a_data_set_that_is_missing(folder: Path) -> None:
    (folder / FILES["gsm8k"].name).unlink()
    prompts, reasons = load_what_is_there(["gsm8k:1", "humaneval:2"])
    assert [prompt.category for prompt in prompts] == ["humaneval"] * 2
    assert len(reasons) == 1
    with pytest.raises(DataError, match="gsm8k"):
        load_what_is_there(["gsm8k:1"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("humaneval:0", "positive integer"),
        ("humaneval:few", "positive integer"),
        ("nowhere", "neither a file nor one of humaneval, gsm8k, spec-bench"),
        ("spec-bench/poetry", "no category 'poetry'; it has spec-bench/writing, spec-bench/qa"),
    ],
)
def test_a_specification_that_means_nothing_is_refused(folder: Path, spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load([spec])


@pytest.mark.parametrize("text", ["", "[1]\n", "not json\n", '{"answer": "no prompt"}\n'])
def test_a_file_without_prompts_is_refused(folder: Path, text: str) -> None:
    file = folder / "mine.jsonl"
    file.write_text(text)
    with pytest.raises(DataError):
        load([str(file)])
