"""The command line as its users meet it: a process, its output, its exit code."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from tests.conftest import ROOT
from tests.server.test_assembly import save_pair

SLIPSTREAM = [sys.executable, "-m", "server.cli"]
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("SLIPSTREAM_")} | {"NO_COLOR": "1"}


def slipstream(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SLIPSTREAM, *map(str, arguments)],
        env={**ENVIRONMENT, **environment},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def write_config(tmp_path: Path, **sections: object) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"models": {"target": {"source": "./missing-model"}}, **sections}))
    return file


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_help_and_version_need_no_heavy_imports() -> None:
    assert slipstream("--version").stdout.startswith("slipstream 0.")
    shown = slipstream("--help")
    assert shown.returncode == 0
    assert all(command in shown.stdout for command in ("serve", "fetch", "config"))
    probe = "import server.cli, sys; sys.exit(any(m in sys.modules for m in ('torch', 'pydantic', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", probe], cwd=ROOT).returncode == 0


def test_a_wrong_configuration_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    file = write_config(tmp_path, server={"prot": 1})
    for arguments in (("serve", "--config", file), ("fetch", "--config", file), ("config", "check", file)):
        outcome = slipstream(*arguments)
        assert outcome.returncode == 2
        assert outcome.stderr.startswith(f"slipstream: {file}: unknown key server.prot; did you mean port?")
        assert outcome.stderr.count("\n") == 1
    outcome = slipstream("serve", "--config", write_config(tmp_path), "--port", "99999")
    assert outcome.returncode == 2
    assert outcome.stderr.startswith("slipstream: command line: server.port = 99999: should be less than or equal")


@pytest.mark.parametrize("arguments", [("serve",), ("serve", "--config", "x.yaml", "--prot", "1"), ("frobnicate",)])
def test_wrong_arguments_are_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert slipstream(*arguments).returncode == 2


def test_missing_weights_are_exit_code_1_without_a_traceback(tmp_path: Path) -> None:
    file = write_config(tmp_path, server={"port": 0})
    for command in ("fetch", "serve"):
        outcome = slipstream(command, "--config", file)
        assert outcome.returncode == 1
        assert outcome.stderr == "slipstream: missing-model: no weights. missing-model does not exist\n"


def test_a_port_in_use_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = slipstream("serve", "--config", write_config(tmp_path), "--port", str(port))
    assert outcome.returncode == 1
    assert outcome.stderr == f"slipstream: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_config_check_goes_through_every_file(tmp_path: Path) -> None:
    target = save_pair(tmp_path / "target")
    good = write_config(
        tmp_path,
        models={
            "target": {"source": str(target), "device": "cpu"},
            "draft": {"source": "target", "device": "cpu", "weights": "bfloat16"},
        },
        kv_cache={"tokens": 1000},
        speculation={"num_draft_tokens": 6},
    )
    outcome = slipstream(
        "config", "check", tmp_path / "missing.yaml", good, "configs/demo.yaml", SLIPSTREAM_API_KEYS='["sk-s3cret"]'
    )
    assert outcome.returncode == 2
    assert "missing.yaml: no such file" in outcome.stderr
    assert f"{good}: valid" in outcome.stdout
    assert "KV cache: 0.8 kB a token (target 0.5 kB, draft 0.3 kB); 1000 tokens, 63 blocks of 16" in outcome.stdout
    assert "warning: speculation.num_draft_tokens = 6 is not above" in outcome.stdout
    assert "1 API keys" in outcome.stdout
    assert "configs/demo.yaml: valid" in outcome.stdout
    assert "s3cret" not in outcome.stdout


def test_what_is_missing_here_does_not_make_a_configuration_wrong(tmp_path: Path) -> None:
    outcome = slipstream("config", "check", write_config(tmp_path))
    assert outcome.returncode == 0
    assert outcome.stdout.endswith(f"  missing here:\n    - models.target.source: nothing at {ROOT}/missing-model\n")
    assert not outcome.stderr


def test_files_that_contradict_a_configuration_make_it_wrong(tmp_path: Path) -> None:
    file = save_pair(tmp_path / "target") / "config.json"
    models = {"target": {"source": str(file.parent)}}
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": ["FooForCausalLM"]}))
    outcome = slipstream("config", "check", write_config(tmp_path, models=models))
    assert outcome.returncode == 2
    assert f"slipstream: {tmp_path}/config.yaml: architecture 'FooForCausalLM' is not supported" in outcome.stderr
    assert "valid" not in outcome.stdout


def test_a_gpu_that_is_not_here_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    file = write_config(tmp_path, models={"target": {"source": "org/huge", "device": "cuda:99"}}, server={"port": 0})
    outcome = slipstream("serve", "--config", file)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("slipstream: models.target.device = cuda:99: torch sees ")
    assert outcome.stderr.count("\n") == 1


def test_one_model_over_several_processes_is_refused_at_the_start(tmp_path: Path) -> None:
    models = {"target": {"source": "org/huge", "device": "cpu", "tp_plan": "auto"}}
    file = write_config(tmp_path, models=models, server={"port": 0})
    outcome = slipstream("serve", "--config", file, WORLD_SIZE="2")
    assert outcome.returncode == 1
    assert "slipstream: models.target.tp_plan = auto over WORLD_SIZE = 2 processes is for a later" in outcome.stderr


# Each round as slow as that of a model of billions: the real forward, and then some more time.
SLOW_FORWARDS = """
import time
from core.models.runner import ModelRunner
from server.cli import main

real = ModelRunner.forward

def slow(self, layout):
    logits = real(self, layout)
    time.sleep(1.5)
    return logits

ModelRunner.forward = slow
main()
"""


@contextmanager
def serving_process(
    config: Path, command: Sequence[str] = SLIPSTREAM, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A server process that is ready, and a client for it."""
    port = free_port()
    process = subprocess.Popen(
        [*command, "serve", "--config", str(config), "--port", str(port)],
        env={**ENVIRONMENT, "OMP_NUM_THREADS": "1", **environment},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    headers = {"Authorization": "Bearer sk-s3cret"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
        try:
            _wait_until_ready(process, client)
            yield process, client
        finally:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[str], client: httpx.Client) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    process.kill()
    pytest.fail(f"the server did not get ready: {process.communicate()[1]}")


def test_a_server_process_answers_and_drains_when_told_to_stop(tmp_path: Path) -> None:
    models = {"target": {"source": str(save_pair(tmp_path / "target"))}, "draft": {"source": "target"}}
    config = write_config(tmp_path, models=models, threads=1, server={"drain_seconds": 30})
    with serving_process(config, SLIPSTREAM_API_KEYS='["sk-s3cret"]') as (process, client):
        assert client.get("/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
        body = {
            "model": "target",
            "prompt": "never to be logged",
            "max_tokens": 200,
            "ignore_eos": True,
            "stream": True,
            "seed": 1,
            "stream_options": {"include_usage": True},
        }
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(signal.SIGTERM)
            answered = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert answered[-1]["usage"]["completion_tokens"] == 200
        with pytest.raises(httpx.TransportError):
            client.get("/health")
        assert process.wait(timeout=30) == 0
        assert process.stderr is not None
        log = process.stderr.read()
    assert "never to be logged" not in log
    assert "s3cret" not in log
    assert "Traceback" not in log
    assert "stopping; running answers may finish" in log
    assert log.endswith(" INFO stopped; answers cut off: 0\n")


@pytest.mark.parametrize("command", [SLIPSTREAM, [sys.executable, "-c", SLOW_FORWARDS]], ids=["quick", "slow rounds"])
def test_what_runs_past_the_drain_time_is_told_so(tmp_path: Path, command: list[str]) -> None:
    models = {"target": {"source": str(save_pair(tmp_path / "target"))}}
    bounds = {"server": {"drain_seconds": 0}, "scheduler": {"max_running": 1}}
    config = write_config(tmp_path, models=models, threads=1, **bounds)
    with serving_process(config, command) as (process, client):
        body = {"model": "target", "prompt": "a", "max_tokens": 250, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(signal.SIGTERM)
            last = [line for line in lines if line][-1]
        assert "shutting down" in json.loads(last.removeprefix("data: "))["error"]["message"]
        process.wait(timeout=30)
        assert process.stderr is not None
        log = process.stderr.read()
    assert "Traceback" not in log
    assert log.endswith(" INFO stopped; answers cut off: 1\n")


@pytest.mark.parametrize("edit", ["architecture", "vocabulary"])
def test_models_that_cannot_be_served_end_the_process_with_the_reason(tmp_path: Path, edit: str) -> None:
    target, draft = save_pair(tmp_path / "target"), save_pair(tmp_path / "draft")
    sections: dict[str, object] = {"models": {"target": {"source": str(target)}, "draft": {"source": str(draft)}}}
    if edit == "architecture":
        file = target / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": ["FooForCausalLM"]}))
        reason = "architecture 'FooForCausalLM' is not supported"
    else:
        file = draft / "tokenizer.json"
        file.write_text(file.read_text().replace("<tool_call>", "<call_tool>"))
        sections["models"] = {
            "target": {"source": str(target)},
            "draft": {"source": str(draft), "across_vocabularies": True},
        }
        sections["speculation"] = {"drafter": "multilevel"}
        reason = "speculation.drafter = multilevel needs a draft model with the target's vocabulary"
    config = write_config(tmp_path, **sections)
    outcome = slipstream("serve", "--config", config, "--port", str(free_port()))
    assert outcome.returncode == 1
    assert f"slipstream: the models could not be loaded: {reason}" in outcome.stderr
    assert "Traceback" not in outcome.stderr
