"""The page before a server as people start it, with the tiny pair's real weights."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.server.serving import ok
from tests.server.web.visitor import Visitor, ask, choose, tokens_of

pytestmark = pytest.mark.weights
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tiny_url(browser: Browser, smollm2_folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [Path(sys.executable).parent / "slipstream", "serve", "--config", ROOT / "configs" / "tiny.yaml"]
    # One sequence at a time: fewer sizes of steps to measure before it is ready.
    environment = {**os.environ, "SLIPSTREAM_SERVER__DRAIN_SECONDS": "0.5", "SLIPSTREAM_SCHEDULER__MAX_RUNNING": "1"}
    process = subprocess.Popen([*command, "--port", str(port)], env=environment, stderr=subprocess.PIPE)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            assert process.poll() is None, process.stderr and process.stderr.read()
            try:
                httpx.get(f"{url}/health")
                break  # whatever it says: the port is bound before the models are loaded
            except httpx.HTTPError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def test_a_page_opened_while_the_model_loads_waits_for_it_and_shows_what_fly_loosened(
    browser: Browser, tiny_url: str
) -> None:
    visitor = Visitor(browser, tiny_url, "")
    visitor.expected.add(503)
    page = visitor.open(with_key=False)
    page.wait_for_selector("html[data-ready]", timeout=120_000)
    expect(page.locator("#model")).to_have_value("SmolLM2-135M-Instruct")
    choose(page.locator("#playground"), verifier="fly", verifier__window=1, verifier__entropy_threshold=0.2)
    answer = ask(page, "Tell a short story about the sea.", drafter="model", draft_length="fixed", max_tokens=40)
    [body] = visitor.asked
    plain = {name: value for name, value in body.items() if not name.startswith("stream")}
    whole = ok(httpx.post(f"{tiny_url}/v1/chat/completions", json=plain, timeout=60))
    entries = whole["choices"][0]["logprobs"]["content"]
    assert tokens_of(answer) == [(entry["token"], entry["provenance"]) for entry in entries]
    deferred = [index for index, entry in enumerate(entries) if entry["provenance"] == "deferred"]
    assert len(deferred) == whole["speculation"]["loosened_tokens"]["deferred"] > 0
    answer.locator(".token").nth(deferred[0]).hover()
    card = page.locator("#token-card")
    expect(card).to_contain_text("rule")
    shown = re.search(r"entropy\s+([\d.]+) nats", card.inner_text())
    assert shown
    seen = entries[deferred[0]]["verification"]
    assert float(shown[1]) == pytest.approx(seen["entropy"], abs=1e-3)
    assert seen["entropy"] >= 0.2
    assert seen["rule"] == "fly"
    visitor.leave()
