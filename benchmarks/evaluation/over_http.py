"""A server with OpenAI's API as somebody who answers: ours, or anybody's."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.answers import Answer, Speculated
from benchmarks.evaluation.reply import Reply, TooLongError
from benchmarks.http_door import RefusedError, root_of
from benchmarks.matrix import Setting

_TRIES = 6
_TIMEOUT = httpx.Timeout(30.0, read=1800.0)
_TOO_LONG = ("context_length_exceeded", "maximum context length")


@dataclass
class OverHttp:
    """url: with or without /v1. A server's times are not measured: they would be the network's too. What a server says
    of its own speculation is kept if it says it."""

    url: str
    model: str
    key: str = "none"
    notes: list[str] = field(default_factory=list)
    measures_time: bool = False
    wait_seconds: float = 1.0

    def __post_init__(self) -> None:
        self.url = root_of(self.url)
        headers = {"Authorization": f"Bearer {self.key}"}
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(timeout=_TIMEOUT, limits=limits, headers=headers, trust_env=False)

    @property
    def identity(self) -> dict[str, Any]:
        return {"url": self.url, "model": self.model}

    def particular(self, fields: Mapping[str, Any]) -> None:
        return None

    async def check(self, setting: Setting, sampling: Mapping[str, Any]) -> None:
        report = (await self._body("Hello", {**sampling, **setting.fields}, 1)).get("speculation")
        warnings = report.get("warnings") if isinstance(report, dict) else None
        self.notes += [f"{setting.name}: {warning}" for warning in warnings or ()]

    async def ask(self, prompt: str, fields: Mapping[str, Any], max_tokens: int) -> tuple[Reply, Answer | None]:
        body = await self._body(prompt, fields, max_tokens)
        try:
            choice, usage = body["choices"][0], body["usage"]
            report = body.get("speculation")
            reply = Reply(
                text=choice["message"].get("content") or "",
                tokens=usage["completion_tokens"],
                prompt_tokens=usage["prompt_tokens"],
                cut=choice["finish_reason"] == "length",
                speculated=Speculated() if report is None else Speculated.from_report(report),
                speedup=None if report is None else report.get("estimated_speedup"),
            )
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise RefusedError(f"{self.url} does not answer as OpenAI's chat completions do: {error!r}") from error
        return reply, None

    async def prime(self, prompts: list[str]) -> None:
        """Nothing to do where no time is measured."""

    async def close(self) -> None:
        await self._client.aclose()

    async def _body(self, prompt: str, fields: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
        """Tried again while the server is full, restarting or out of reach. RefusedError if it stays so, or says no."""
        messages = [{"role": "user", "content": prompt}]
        asking = {"model": self.model, "messages": messages, "max_tokens": max_tokens, **fields}
        for attempt in range(_TRIES):
            wait = self.wait_seconds * 2**attempt
            try:
                response = await self._client.post(f"{self.url}/v1/chat/completions", json=asking)
            except httpx.TransportError as error:
                reason = f"{self.url} cannot be reached: {error or type(error).__name__}"
            else:
                if response.status_code == 200:
                    return _parsed(response)
                reason = f"HTTP {response.status_code}: {_message(response)}"
                if any(mark in response.text for mark in _TOO_LONG):
                    raise TooLongError(reason)
                if response.status_code not in (408, 429, 500, 502, 503, 504):
                    break
                wait = max(wait, _retry_after(response))
            if attempt < _TRIES - 1:
                await asyncio.sleep(wait)
        raise RefusedError(reason)


def _parsed(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{response.url} answers with no JSON: {response.text[:200]}") from error
    if not isinstance(body, dict):
        raise RefusedError(f"{response.url} answers with no JSON object: {response.text[:200]}")
    return body


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return response.text[:200]


def _retry_after(response: httpx.Response) -> float:
    told = response.headers.get("retry-after", "")
    return float(told) if told.isdecimal() else 0.0
