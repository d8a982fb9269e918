import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from benchmarks.datasets import DataError
from benchmarks.evaluation.items import Item
from benchmarks.evaluation.sandbox import Sandbox
from benchmarks.evaluation.tasks import load_items

RECORDS: dict[str, list[dict[str, Any]]] = {
    "gsm8k": [{"question": f"{n} and {n}?", "answer": f"Add.\n#### {2 * n:,}"} for n in range(1000, 1010)],
    "humaneval": [
        {
            "task_id": "T/0",
            "prompt": 'def one():\n    """1"""\n',
            "entry_point": "one",
            "test": "def check(candidate):\n    assert candidate() == 1\n",
            "canonical_solution": "    return 1\n",
        }
    ],
    "mbpp": [
        {"task_id": 2, "text": "Write one().", "code": "", "test_list": ["assert one() == 1"], "test_setup_code": ""},
        {
            "task_id": 3,
            "prompt": "Write pi().",
            "test_imports": ["import math"],
            "test_list": ["assert pi() == math.pi"],
        },
    ],
    "math500": [{"problem": "1/2?", "answer": "\\frac{1}{2}", "solution": "", "unique_id": "test/1.json", "level": 1}],
    "mgsm": [{"question": "Eins?", "answer": None, "answer_number": 1}],
    "mt": [{"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}],
    "spec-bench": [{"question_id": n, "category": "ab"[n % 2], "turns": [f"Say {n}."]} for n in range(6)],
}


def file_of(folder: Path, kind: str) -> str:
    path = folder / f"{kind}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS[kind]))
    return str(path)


def items_of(folder: Path, kind: str) -> list[Item]:
    return load_items([f"{kind}={file_of(folder, kind)}"])


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("gsm8k", "The answer is 2,000.", "The answer is 1000."),
        ("humaneval", "```python\ndef one():\n    return 1\n```", "```python\ndef one():\n    return 2\n```"),
        ("mbpp", "```python\ndef one():\n    return 1\n```", "```python\ndef two():\n    return 1\n```"),
        ("math500", "\\boxed{0.5}", "\\boxed{2}"),
        ("mgsm", "Die Antwort: 1", "Die Antwort: 2"),
    ],
)
def test_right_and_wrong_answers_are_told_apart(
    kind: str, right: str, wrong: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    scorer = items_of(tmp_path, kind)[0].scorer
    assert scorer is not None
    assert scorer.judge(right, sandbox).passed
    refused = scorer.judge(wrong, sandbox)
    assert not refused.passed
    assert refused.reason


def test_the_sanitized_form_of_mbpp_brings_its_imports(sandbox: Sandbox, tmp_path: Path) -> None:
    item = items_of(tmp_path, "mbpp")[1]
    assert item.scorer is not None
    assert "assert pi() == math.pi" in item.prompt
    assert item.scorer.judge("```python\nimport math\ndef pi():\n    return math.pi\n```", sandbox).passed


def test_conversations_have_no_score_and_their_first_turn_is_asked(tmp_path: Path) -> None:
    (item,) = items_of(tmp_path, "mt")
    assert (item.task, item.prompt, item.scorer) == ("mt/writing", "Write.", None)


def test_a_count_takes_so_many_of_each_category_evenly_spaced(tmp_path: Path) -> None:
    (tmp_path / "question.jsonl").write_text("")
    spec, gsm8k = file_of(tmp_path, "spec-bench"), file_of(tmp_path, "gsm8k")
    chosen = load_items([f"spec-bench={spec}:2", f"gsm8k={gsm8k}:5"])
    assert [item.name for item in chosen[:4]] == ["spec-bench/0", "spec-bench/2", "spec-bench/1", "spec-bench/3"]
    assert [item.name for item in chosen[4:]] == [f"gsm8k/{n}" for n in (0, 2, 4, 6, 8)]
    assert [item.task for item in load_items([f"spec-bench/b={spec}"])] == ["spec-bench/b"] * 3


def test_an_item_named_twice_is_asked_once(tmp_path: Path) -> None:
    path = file_of(tmp_path, "gsm8k")
    assert len(load_items([f"gsm8k={path}:5", f"gsm8k={path}"])) == 10


def test_lists_packed_files_and_tab_separated_ones_are_read(tmp_path: Path) -> None:
    (tmp_path / "sanitized.json").write_text(json.dumps(RECORDS["mbpp"]))
    (tmp_path / "gsm8k.jsonl.gz").write_bytes(gzip.compress(Path(file_of(tmp_path, "gsm8k")).read_bytes()))
    (tmp_path / "mgsm_de.tsv").write_text('Was ist "zwei"?\t2\n')
    found = load_items(
        [f"mbpp={tmp_path}/sanitized.json", f"gsm8k={tmp_path}/gsm8k.jsonl.gz", f"mgsm={tmp_path}/mgsm_de.tsv"]
    )
    assert [item.task for item in found] == ["mbpp"] * 2 + ["gsm8k"] * 10 + ["mgsm"]
    assert found[-1].prompt.startswith('Was ist "zwei"?')


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nothing", "'nothing' is none of humaneval, gsm8k"),
        ("mbpp", "mbpp needs a file or URL"),
        ("gsm8k=FOLDER/none.jsonl", "none.jsonl cannot be read"),
        ("gsm8k=FOLDER/mt.jsonl", "is not gsm8k as it was published: there is no 'answer'"),
        ("spec-bench/c=FOLDER/spec-bench.jsonl", "no category 'c'; it has spec-bench/a, spec-bench/b"),
        ("gsm8k=FOLDER/gsm8k.jsonl:0", "should be at least 1"),
        ("gsm8k=FOLDER/broken.jsonl", "broken.jsonl cannot be read"),
    ],
)
def test_what_cannot_be_had_is_named(tmp_path: Path, spec: str, message: str) -> None:
    for kind in ("gsm8k", "mt", "spec-bench"):
        file_of(tmp_path, kind)
    (tmp_path / "broken.jsonl").write_text('{"question": ')
    with pytest.raises(DataError, match=message):
        load_items([spec.replace("FOLDER", str(tmp_path))])


@contextmanager
def file_server(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_url_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file_of(tmp_path, "math500")
    monkeypatch.setenv("BENCH_DATA_DIR", str(tmp_path / "cache"))
    with file_server(tmp_path) as url:
        spec = f"math500={url}/math500.jsonl"
        (item,) = load_items([f"{spec}:1"])
        with pytest.raises(DataError, match="cannot be fetched"):
            load_items([f"math500={url}/none.jsonl"])
    assert load_items([spec]) == [item]
