"""Prompts for the benchmarks: public data sets, fetched on first use and checked, never shipped.

A folder named by BENCH_DATA_DIR (default: bench-data in Slipstream's cache) may already hold the
files; otherwise they are downloaded from their publishers' repositories.
"""

import gzip
import hashlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx


@dataclass(frozen=True)
class DataFile:
    name: str
    url: str
    sha256: str


HUMANEVAL = DataFile(
    "HumanEval.jsonl.gz",
    "https://raw.githubusercontent.com/openai/human-eval/master/data/HumanEval.jsonl.gz",
    "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
)
SPEC_BENCH = DataFile(
    "spec_bench.jsonl",
    "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
    "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
)


def data_folder() -> Path:
    named = os.environ.get("BENCH_DATA_DIR")
    return Path(named) if named else Path.home() / ".cache" / "slipstream" / "bench-data"


def fetch(data: DataFile) -> Path:
    """The local file; downloads it once. RuntimeError names the file when its checksum is wrong."""
    path = data_folder() / data.name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        response = httpx.get(data.url, follow_redirects=True, timeout=60)
        response.raise_for_status()
        path.write_bytes(response.content)
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    if actual != data.sha256:
        raise RuntimeError(f"{path} has sha256 {actual}, expected {data.sha256}; delete it and run again")
    return path


def _records(data: DataFile) -> list[dict[str, Any]]:
    raw = fetch(data).read_bytes()
    text = gzip.decompress(raw) if data.name.endswith(".gz") else raw
    return [json.loads(line) for line in text.decode("utf-8").splitlines() if line.strip()]


def humaneval(count: int, besides: Collection[str] = ()) -> list[str]:
    """User messages that ask for the body of evenly spaced HumanEval functions, none of them among `besides`."""
    ask = "Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{}```"
    messages = [ask.format(record["prompt"]) for record in _records(HUMANEVAL)]
    others = [message for message in messages if message not in besides]
    return others[:: max(1, len(others) // count)][:count]


def spec_bench(category: str, count: int, besides: Collection[str] = ()) -> list[str]:
    """First turns of a Spec-Bench category (writing, coding, math_reasoning, ...), none of them among `besides`."""
    messages = [record["turns"][0] for record in _records(SPEC_BENCH) if record["category"] == category]
    return [message for message in messages if message not in besides][:count]
