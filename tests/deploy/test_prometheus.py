"""A real Prometheus with the files that are shipped, reading a real server: every panel gets data.

Needs the programs prometheus and promtool, as in Debian's package prometheus.
"""

import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from tests.deploy import questions
from tests.deploy.test_stack import WATCHERS, script
from tests.deploy.traffic import KEY, burst
from tests.server.test_cli import free_port

pytestmark = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="prometheus and promtool are not installed"
)
BURSTS = 20  # of requests, at most; a second apart


def moved(folder: Path, server: int) -> Path:
    """The stack's folder, copied: targets on this machine, scraped every half second, keys read from that folder."""
    shutil.copytree(questions.STACK, folder, ignore=shutil.ignore_patterns("boards"))
    file = folder / "prometheus.yml"
    config = yaml.safe_load(file.read_text("utf-8"))
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "1s"}
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [f"127.0.0.1:{server}"]}]
        if "authorization" in job:
            job["authorization"]["credentials_file"] = str(folder / "key")
    config["scrape_configs"] = [job for job in config["scrape_configs"] if job["job_name"] == "slipstream"]
    file.write_text(yaml.safe_dump(config), "utf-8")
    return file


@contextmanager
def prometheus(folder: Path, server: int) -> Iterator[httpx.Client]:
    """What docker-compose.yml starts, with its paths below folder, and a client for its HTTP API."""
    config, port = moved(folder / "stack", server), free_port()
    shell = script("prometheus").rstrip() + f" --web.listen-address=127.0.0.1:{port}"
    for inside, here in (
        ("/etc/stack/prometheus.yml", config),
        (WATCHERS["prometheus"]["tmpfs"], folder / "stack"),
        ("=/prometheus ", f"={folder / 'data'} "),
    ):
        assert inside in shell
        shell = shell.replace(inside, str(here))
    process = subprocess.Popen(
        ["/bin/sh", "-ec", shell],
        env={**os.environ, "SLIPSTREAM_API_KEYS": f'["{KEY}", "sk-other"]'},
        stderr=subprocess.PIPE,
        text=True,
    )
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
        try:
            yield _healthy(process, client)
        finally:
            process.kill()
            process.communicate()


def _healthy(process: subprocess.Popen[str], client: httpx.Client) -> httpx.Client:
    path = WATCHERS["prometheus"]["healthcheck"]["test"][-1].partition(":9090")[2]
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if client.get(path).status_code == 200:
                return client
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    process.kill()
    pytest.fail(f"prometheus did not start: {process.communicate()[1]}")


def values(client: httpx.Client, expr: str) -> list[float]:
    answer = client.get("/api/v1/query", params={"query": expr}).json()
    assert answer["status"] == "success", answer
    return [float(series["value"][1]) for series in answer["data"]["result"]]


def test_promtool_accepts_the_files(tmp_path: Path) -> None:
    config = moved(tmp_path / "stack", 8000)
    (tmp_path / "stack" / "key").touch()
    outcome = subprocess.run(["promtool", "check", "config", config], capture_output=True, text=True, timeout=30)
    assert outcome.returncode == 0, outcome.stderr
    assert "7 rules found" in outcome.stdout


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    for file in (questions.STACK / "alerts.yml", Path(__file__).parent / "alerts_test.yml"):
        shutil.copy(file, tmp_path)
    outcome = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert outcome.returncode == 0, outcome.stdout


def test_promtool_accepts_the_servers_metrics(watched: httpx.Client) -> None:
    burst(watched)
    scraped = watched.get("/metrics").text
    outcome = subprocess.run(
        ["promtool", "check", "metrics"], input=scraped, capture_output=True, text=True, timeout=30
    )
    assert outcome.returncode == 0, outcome.stderr


def test_every_panel_and_every_example_in_the_docs_gets_data_under_load(watched: httpx.Client, tmp_path: Path) -> None:
    assert watched.base_url.port
    with prometheus(tmp_path, watched.base_url.port) as client:
        empty = [*questions.of_panels(), *questions.of_docs()]
        for _ in range(BURSTS):
            burst(watched)
            time.sleep(1)  # the audit works in idle rounds
            empty = [one for one in empty if not any(map(math.isfinite, values(client, one.over("10s"))))]
            if not empty:
                break
        assert not [question.asker for question in empty]
        assert values(client, 'up{job="slipstream"}') == [1.0]
        rules = [rule for group in client.get("/api/v1/rules").json()["data"]["groups"] for rule in group["rules"]]
        assert len(rules) == len(list(questions.of_alerts()))
        assert {rule["health"] for rule in rules} == {"ok"}
        assert not [alert for rule in rules for alert in rule["alerts"] if alert["state"] == "firing"]
