"""Every request ends once in the metrics, under the name of whoever ended it: the client, a bug, the engine, nobody."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from server.openai_api.chat_renderer import ChatRenderer
from server.openai_api.responses_renderer import ResponseRenderer
from server.telemetry.answer_figures import AnswerFigures
from tests.server.asgi import Exchange, until
from tests.server.serving import MODEL, chat, chat_body, only_ascii, running
from tests.server.telemetry.scrape import scraped, total

PLAIN = {"logit_bias": only_ascii()}
LONG = {"max_tokens": 200, "ignore_eos": True, "verifier": "off"}
ENDED = "gen_ai_server_request_duration_seconds_count"


async def errors(client: httpx.AsyncClient) -> dict[str | None, float]:
    """Requests that have ended, by the type of their error."""
    ends: dict[str | None, float] = {}
    for family in (await scraped(client)).values():
        for one in family.samples:
            if one.name == ENDED:
                error = one.labels.get("error_type")
                ends[error] = ends.get(error, 0) + one.value
    return ends


async def ended(client: httpx.AsyncClient, count: int) -> dict[str | None, float]:
    """The same, once there are so many."""

    async def all_told() -> bool:
        return sum((await errors(client)).values()) == count

    await until(all_told)
    return await errors(client)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_the_queue_is_no_failure_of_the_server(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(max_running=1) as (app, client):
        first = asyncio.create_task(chat(client, **LONG))
        waiting = Exchange.post("/v1/chat/completions", chat_body(stream=stream, **PLAIN))

        async def runs() -> bool:
            return bool(app.state.readiness.stats().running)

        async def queued() -> bool:
            return bool(app.state.readiness.stats().waiting)

        await until(runs)
        asked = asyncio.create_task(waiting.run(app))
        await until(queued)
        waiting.leave.set()
        await asked
        await first
        families = await scraped(client)
        assert await errors(client) == {None: 2}
    assert total(families, "slipstream_requests_total", finish_reason="abort") == 1
    assert not [
        record for record in caplog.records if record.name.startswith("server") and record.levelno > logging.INFO
    ]


async def test_a_client_that_leaves_while_preempted_is_no_failure_of_the_server() -> None:
    async with running(max_running=8) as (app, client):
        engine = app.state.readiness.model().engine
        pool = engine._runtime.pool
        hoard = pool._num_free - 14  # as if others held them: room for little more than one answer
        pool._num_free = 14
        pool.num_blocks -= hoard
        asked = [
            Exchange.post("/v1/chat/completions", chat_body(f"{number} once upon a time", **LONG, stream=True))
            for number in range(3)
        ]
        tasks = [asyncio.create_task(exchange.run(app)) for exchange in asked]

        async def preempted() -> bool:
            stats = app.state.readiness.stats()
            return bool(stats.preemptions and stats.waiting)

        await until(preempted)
        for exchange in asked:
            exchange.leave.set()
        await asyncio.gather(*tasks)
        assert await ended(client, 3) == {None: 3}


def break_whole(renderer: type, monkeypatch: pytest.MonkeyPatch) -> None:
    real = renderer.whole  # type: ignore[attr-defined]

    async def whole(self: Any, generation: Any) -> Any:
        await real(self, generation)
        raise RuntimeError("a bug")

    monkeypatch.setattr(renderer, "whole", whole)


def break_stream(renderer: type, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(renderer, method)

    async def broken(self: Any, generation: Any) -> AsyncIterator[Any]:
        number = 0
        async for one in real(self, generation):
            number += 1
            if number == 3:
                raise RuntimeError("a bug")
            yield one

    monkeypatch.setattr(renderer, method, broken)


async def test_an_answer_that_cannot_be_written_down_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    break_whole(ChatRenderer, monkeypatch)
    async with running() as (_, client):
        assert (await client.post("/v1/chat/completions", json=chat_body(**PLAIN))).status_code == 500
        assert await errors(client) == {"RuntimeError": 1}


@pytest.mark.parametrize(
    ("path", "body", "renderer", "method"),
    [
        ("/v1/chat/completions", chat_body(max_tokens=30, **PLAIN), ChatRenderer, "chunks"),
        ("/v1/responses", {"model": MODEL, "input": "a king"}, ResponseRenderer, "_events"),
    ],
)
async def test_a_stream_that_breaks_off_is_a_failure_and_its_sequence_is_let_go(
    path: str, body: dict[str, Any], renderer: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_stream(renderer, method, monkeypatch)
    async with running() as (app, client):
        response = await client.post(path, json={**body, "stream": True})
        assert response.status_code == 200
        assert "[DONE]" not in response.text
        assert await ended(client, 1) == {"RuntimeError": 1}
        assert await _idle(app)


async def _idle(app: FastAPI) -> bool:
    async def nobody() -> bool:
        stats = app.state.readiness.stats()
        return not (stats.running or stats.waiting or stats.blocks_used)

    await until(nobody)
    return True


async def test_mistakes_of_telemetry_reach_no_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("no figures today")

    for method in ("expect", "first_token", "sequence_ended", "answer_ended"):
        monkeypatch.setattr(AnswerFigures, method, broken)
    async with running() as (app, client):
        assert (await chat(client, max_tokens=3))["usage"]["completion_tokens"] == 3
        refused = await client.post("/v1/chat/completions", json=chat_body("king " * 400))
        assert refused.status_code == 400
        assert not app.state.telemetry._watches
    assert "telemetry of a request failed in close" in caplog.text


async def test_every_way_to_end_is_counted_from_0(client: httpx.AsyncClient) -> None:
    await chat(client, max_tokens=3, verifier="strict", drafter="model", **PLAIN)
    [family] = [one for name, one in (await scraped(client)).items() if name == "slipstream_requests"]
    assert {one.labels["finish_reason"]: one.value for one in family.samples if one.name.endswith("_total")} == {
        "length": 1,
        "stop": 0,
        "constraint": 0,
        "abort": 0,
        "error": 0,
    }


async def test_a_slow_exposition_holds_up_neither_the_loop_nor_other_threads(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = most = 0

    def slow(_registry: Any) -> bytes:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        held.wait(10)
        at_once -= 1
        return b"# nothing\n"

    held = threading.Event()
    monkeypatch.setattr("server.telemetry.telemetry.generate_latest", slow)
    scrapes = [asyncio.create_task(client.get("/metrics")) for _ in range(3)]

    async def begun() -> bool:
        return bool(at_once)

    await until(begun)
    await chat(client, max_tokens=3)
    assert not any(scrape.done() for scrape in scrapes)
    held.set()
    assert {(await scrape).text for scrape in scrapes} == {"# nothing\n"}
    assert most == 1
