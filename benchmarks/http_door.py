"""A Door to a server over HTTP: streamed answers, read in a process of its own.

The client's work (parsing a JSON object a token) must not slow down a server or an engine that lives in the measuring
process, nor be slowed down by it.
"""

import asyncio
import json
import multiprocessing
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from benchmarks.answers import Answer, Group, Speculated, by_clients
from benchmarks.errors import BenchError

_TIMEOUT = httpx.Timeout(30.0, read=600.0)


class RefusedError(BenchError):
    """The server answered with an error, in its own words, or not what can be measured."""


def _one_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def root_of(url: str) -> str:
    """Both http://host:8000 and http://host:8000/v1/ are http://host:8000."""
    return url.rstrip("/").removesuffix("/v1")


@dataclass
class HttpDoor:
    """url: of the server, with or without /v1. model: what requests name. path: "chat/completions", which takes
    messages as they are; or "completions", for prompts that `encode` turned into token ids."""

    url: str
    model: str
    key: str = "none"
    path: str = "chat/completions"
    encode: Any = None
    _pool: ProcessPoolExecutor = field(default_factory=_one_process)

    def __post_init__(self) -> None:
        self.url = root_of(self.url)

    async def ask(
        self, messages: Sequence[str], fields: Mapping[str, Any], max_tokens: int, clients: int | None = None
    ) -> Group:
        bodies = [{**self._prompt(message), **self._common(max_tokens), **fields} for message in messages]
        run = asyncio.get_running_loop().run_in_executor
        return await run(self._pool, stream_group, f"{self.url}/v1/{self.path}", self.key, bodies, clients)

    def _prompt(self, message: str) -> dict[str, Any]:
        if self.encode is not None:
            return {"prompt": self.encode(message)}
        return {"messages": [{"role": "user", "content": message}]}

    def _common(self, max_tokens: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def close(self) -> None:
        self._pool.shutdown()


def stream_group(url: str, key: str, bodies: Sequence[Mapping[str, Any]], clients: int | None = None) -> Group:
    """Send the bodies and read their streams. clients: as in Group. RefusedError if the server refuses one."""
    return asyncio.run(_stream_group(url, key, bodies, clients))


async def _stream_group(url: str, key: str, bodies: Sequence[Mapping[str, Any]], clients: int | None) -> Group:
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(timeout=_TIMEOUT, limits=limits, headers=headers, trust_env=False) as client:
        return await by_clients([partial(_stream, client, url, body) for body in bodies], clients)


async def _stream(client: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> Answer:
    arrivals: list[float] = []
    text: list[str] = []
    usage: Mapping[str, Any] = {}
    report: Mapping[str, Any] | None = None
    asked = time.perf_counter()
    async with client.stream("POST", url, json=body) as response:
        if response.status_code != 200:
            raise RefusedError(_reason(response.status_code, await response.aread()))
        async for chunk in _chunks(response):
            if "error" in chunk:
                raise RefusedError(str(chunk["error"]))
            if piece := _text(chunk):
                arrivals.append(time.perf_counter())
                text.append(piece)
            usage = chunk.get("usage") or usage
            report = chunk.get("speculation") or report
    if not arrivals:  # nothing but an end token
        arrivals.append(time.perf_counter())
    if "completion_tokens" not in usage:
        raise RefusedError(f"{url} does not tell how many tokens an answer has (usage), so nothing can be measured")
    speculated = Speculated() if report is None else Speculated.from_report(report)
    tokens, prompt = usage["completion_tokens"], usage.get("prompt_tokens", 0)
    return Answer(tokens, "".join(text), asked, tuple(arrivals), 1, prompt, speculated)


async def _chunks(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[len("data: ") :])


def _text(chunk: Mapping[str, Any]) -> str:
    """Of a chat's chunk, reasoning included, or of a completion's."""
    found = ""
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        found += choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
    return found


def _reason(status: int, body: bytes) -> str:
    try:
        return f"HTTP {status}: {json.loads(body)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}: {body[:200].decode(errors='replace')}"
