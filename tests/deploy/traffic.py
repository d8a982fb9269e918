"""A real server with everything on that telemetry tells of, and requests of every kind for it."""

import itertools
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from transformers import LlamaForCausalLM

from core.correction_memory import CorrectionMemory
from core.models.checkpoint import fingerprint
from tests.server import serving
from tests.server.test_assembly import save_pair
from tests.server.test_cli import serving_process, write_config
from tests.tiny import noisy_copy

KEY = "sk-s3cret"  # what serving_process' client carries
VERIFIERS: list[Any] = [
    "off",
    "strict",
    {"type": "fly", "entropy_threshold": 0.0, "window": 0},
    {"type": "csd", "frequency_threshold": 1, "ratio": 0.01},
    {"type": "hybrid", "entropy_threshold": 0.0, "window": 1},
    {"type": "lossy", "threshold": 0.01},
]
_TURNS = itertools.count()  # an answer that was audited before would not be again
DRAFTERS = ["multilevel", "model", "prompt_lookup"]


@contextmanager
def watched_server(folder: Path) -> Iterator[httpx.Client]:
    """`slipstream serve` on a tiny random pair, with a correction memory, an audit of every answer, and an API key."""
    target, draft = save_pair(folder / "target"), folder / "draft"
    noisy_copy(LlamaForCausalLM.from_pretrained(target)).save_pretrained(draft)
    serving.tokenizer().save_pretrained(draft)
    memory = CorrectionMemory(fingerprint(target), fingerprint(draft))
    memory.record("model", 5, 6)
    memory.save(folder / "memory.bin")
    config = write_config(
        folder,
        models={"target": {"source": str(target)}, "draft": {"source": str(draft)}},
        threads=1,
        max_context=serving.CONTEXT,
        kv_cache={"tokens": 4096},
        scheduler={"max_running": 4},
        speculation={"correction_memory": str(folder / "memory.bin"), "draft_length": "fixed", "num_draft_tokens": 5},
        audit={"sample_rate": 1.0, "reconverge_tokens": 4, "quiet_seconds": 0.05},
    )
    with serving_process(config, SLIPSTREAM_API_KEYS=f'["{KEY}", "sk-other"]') as (_, client):
        yield client


def burst(client: httpx.Client) -> None:
    """One greedy chat under every verifier and drafter, some streamed, some completions, several at once."""
    requests = [(verifier, drafter) for verifier in VERIFIERS for drafter in DRAFTERS]
    with ThreadPoolExecutor(4) as pool:
        for response in pool.map(lambda one: _ask(client, *one[1], streamed=one[0] % 2 == 0), enumerate(requests)):
            assert response.status_code == 200, response.text


def _ask(client: httpx.Client, verifier: Any, drafter: str, streamed: bool) -> httpx.Response:
    body = {
        "model": client.get("/v1/models").json()["data"][0]["id"],
        "messages": [{"role": "user", "content": f"{serving.CORPUS[0]} {next(_TURNS)}"}],
        "max_tokens": 40,
        "temperature": 0,
        "verifier": verifier,
        "drafter": drafter,
        "stream": streamed,
    }
    if drafter == "prompt_lookup":
        body["prompt"] = body.pop("messages")[0]["content"]
        return client.post("/v1/completions", json=body)
    return client.post("/v1/chat/completions", json=body)


def until_audited(client: httpx.Client, answers: int = 1, seconds: float = 30) -> str:
    """/metrics, once so many answers were audited: the audit waits for idle rounds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        scraped = client.get("/metrics").text
        counts = re.findall(r"^slipstream_audit_answers_total\{.*\} (\S+)", scraped, re.MULTILINE)
        if sum(map(float, counts)) >= answers:
            return scraped
        time.sleep(0.1)
    raise TimeoutError(f"fewer than {answers} answers were audited within {seconds:g} s")
