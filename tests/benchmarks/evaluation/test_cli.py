"""`slipstream evaluate` as its users meet it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from benchmarks.evaluation.cli import app
from server.bench import BenchMissingError, run_evaluation
from tests.conftest import ROOT
from tests.server.test_cli import slipstream

LONG = 120.0


def evaluate(*arguments: str) -> Result:
    """In this process, as most of a new one's seconds go into imports."""
    return CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(app, ["evaluate", *arguments])


def test_it_is_listed_and_has_a_help() -> None:
    shown = slipstream("evaluate", "--help", COLUMNS="160")
    assert shown.returncode == 0
    for option in ("--task", "--preset", "--base-url", "--seeds", "--trust-code"):
        assert option in shown.stdout


def test_nothing_heavy_is_imported_to_show_help() -> None:
    probe = (
        "import benchmarks.evaluation.cli, sys; sys.exit(any(m in sys.modules for m in ('torch', 'httpx', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", probe], cwd=ROOT).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-t", "nothing"), "'nothing' is none of humaneval"),
        (("-t", "mt=TASK", "--preset", "fly"), "unknown preset 'fly'"),
        (("-t", "mt=TASK", "--seeds", "a"), "--seeds should be whole numbers"),
        (("-t", "mt=TASK", "--draft-length", "some"), "draft length 'some'"),
        (("-t", "mt=TASK", "-c", "missing.yaml"), "missing.yaml"),
        (("-t", "mt=TASK", "--base-url", "http://127.0.0.1:1"), "gives no model"),
        (("-t", "mt=TASK", "--out", "/proc/x"), "--out /proc/x cannot be written to"),
        (("-t", "mt=TASK", "--name", "../../evil"), "beginning of a file's name, got '../../evil'"),
        (("-t", "mt=TASK", "--name", "/evil"), "beginning of a file's name"),
    ],
)
def test_what_a_person_can_put_right_is_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    run = evaluate(
        "--no-plots", "-o", str(tmp_path / "out"), *(one.replace("TASK", str(task(tmp_path, 1))) for one in arguments)
    )
    assert run.exit_code == 1
    assert message in run.stderr
    assert run.stderr.startswith("slipstream evaluate: ")


def test_an_installation_without_benchmarks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.bench._EVALUATION", "no_such_package.cli")
    with pytest.raises(BenchMissingError, match="not part of this installation"):
        run_evaluation(["evaluate"])


def test_ctrl_c_keeps_what_there_is_and_the_same_command_goes_on(config: Path, tmp_path: Path) -> None:
    settings = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**settings, "scheduler": {"max_running": 2}}))
    journal = tmp_path / "out" / "evaluation.answers.jsonl"
    options = [
        "-t",
        f"mt={task(tmp_path, 24)}",
        "--verifier",
        "strict",
        "--clients",
        "2",
        "--tokens",
        "24",
        "--no-plots",
    ]
    command = [sys.executable, "-m", "server.cli", "evaluate", "-c", str(config), *options, "-o", str(tmp_path / "out")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ}) as run:
        ends = time.monotonic() + LONG
        while answers(journal) < 3 and time.monotonic() < ends and run.poll() is None:
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=LONG)
    assert run.returncode == 130, said
    assert "interrupted; every finished answer is in" in said
    kept = answers(journal)
    assert 3 <= kept < 48
    done = evaluate("-c", str(config), *options, "-o", str(tmp_path / "out"))
    assert done.exit_code == 0, done.stderr
    assert answers(journal) == 48
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["complete"] is True


def task(folder: Path, count: int) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"once upon a time there were {n}"}) + "\n" for n in range(count)))
    return path


def answers(journal: Path) -> int:
    """How many questions are answered; `off` may have answered again, for its time."""
    if not journal.exists():
        return 0
    told = [json.loads(line) for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return len({record["key"] for record in told if "key" in record})
