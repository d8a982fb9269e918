"""`slipstream bench` as its users meet it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from benchmarks.errors import BenchError
from benchmarks.explained import Explained
from server.bench import BenchMissingError, run_bench
from tests.conftest import ROOT
from tests.server.test_cli import slipstream


def test_bench_has_a_help_of_its_own_and_is_listed() -> None:
    shown = slipstream("bench", "--help")
    assert shown.returncode == 0
    for command in ("speed", "costs", "company", "footprint", "peers", "smoke"):
        assert command in shown.stdout
    assert "--draft-length" in slipstream("bench", "speed", "--help", COLUMNS="160").stdout
    assert "bench" in slipstream("--help").stdout


def test_nothing_heavy_is_imported_to_show_help() -> None:
    probe = "import benchmarks.cli, sys; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'httpx')))"
    assert subprocess.run([sys.executable, "-c", probe], cwd=ROOT).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("speed", "-p", "nothing"), "'nothing' is neither a file nor one of"),
        (("speed", "--draft-length", "some"), "draft length 'some'"),
        (("speed", "--clients", "two", "-p", "PROMPTS"), "--clients should be positive integers"),
        (("speed", "-c", "missing.yaml", "-p", "PROMPTS"), "missing.yaml"),
        (("peers", "--peer", "vllm:plain", "-p", "PROMPTS"), "unknown peer 'vllm:plain'"),
        (("peers", "--peer", "llama.cpp:draft:size_n=2", "-p", "PROMPTS"), "has the options n_max"),
        (("company", "--verifier", "off", "-p", "PROMPTS"), "should name company that drafts"),
        (("speed", "--clients", "1,2", "-p", "PROMPTS"), "2 clients at once need 4 different prompts"),
        (("speed", "--base-url", "http://127.0.0.1:1", "-p", "PROMPTS"), "gives no model"),
    ],
)
def test_what_a_person_can_put_right_is_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text(json.dumps({"prompt": "hello"}))
    run = slipstream("bench", *(str(prompts) if one == "PROMPTS" else one for one in arguments))
    assert run.returncode == 1, run.stderr
    assert message in run.stderr
    assert run.stderr.startswith("slipstream bench: ")
    assert "Traceback" not in run.stderr


def test_plots_without_matplotlib_are_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text(json.dumps({"prompt": "hello"}))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    run = slipstream("bench", "speed", "-p", str(prompts), PYTHONPATH=path)
    assert run.returncode == 1
    assert "pip install 'slipstream[bench]', or run with --no-plots" in run.stderr


def test_an_installation_without_benchmarks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.bench._MODULE", "no_such_package.cli")
    with pytest.raises(BenchMissingError, match="not part of this installation"):
        run_bench(["speed"])


def test_a_mistake_of_the_benchmarks_own_keeps_its_traceback() -> None:
    def raised(error: Exception) -> type[BaseException]:
        with pytest.raises(BaseException) as caught, Explained():  # noqa: PT011
            raise error
        return caught.type

    assert raised(ValueError("too many values to unpack")) is ValueError
    assert raised(BenchError("--clients should be positive")) is typer.Exit
