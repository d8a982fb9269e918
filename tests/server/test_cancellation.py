"""A client that leaves stops its generation at whatever stage it is; failures keep OpenAI's shape."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import scheduler.engine
from tests.server.asgi import Exchange, until
from tests.server.serving import chat, chat_body, completion_body, error_of, only_ascii, running

CHAT = "/v1/chat/completions"
LONG = {"max_tokens": 200, "logit_bias": only_ascii(), "verifier": "off"}


async def idle(app: FastAPI) -> None:
    """Wait until nothing runs; every block must be free then."""

    async def nothing_runs() -> bool:
        stats = app.state.readiness.stats()
        return not (stats.running or stats.waiting)

    await until(nothing_runs)
    assert app.state.readiness.stats().blocks_used == 0


async def busy(app: FastAPI, field: str = "running") -> None:
    async def something_does() -> bool:
        return bool(getattr(app.state.readiness.stats(), field))

    await until(something_does)


@pytest.mark.parametrize("more", [{}, {"n": 3, "temperature": 1.0}])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_leaving_a_plain_request_aborts_it(path: str, more: dict[str, Any]) -> None:
    async with running() as (app, _):
        body = (chat_body if path == CHAT else completion_body)(**LONG, **more)
        exchange = Exchange.post(path, body)
        task = asyncio.create_task(exchange.run(app))
        await busy(app)
        exchange.leave.set()
        await asyncio.wait_for(task, 5)
        await idle(app)
        assert app.state.readiness.stats().finished["abort"] >= 1


async def test_leaving_a_stream_aborts_it() -> None:
    async with running() as (app, _):
        exchange = Exchange.post(CHAT, chat_body(stream=True, n=2, temperature=1.0, **LONG))

        def leave_on_text(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                exchange.leave.set()

        exchange.on_message = leave_on_text
        await asyncio.wait_for(exchange.run(app), 5)
        await idle(app)
        assert b"[DONE]" not in exchange.content


async def test_leaving_while_waiting_in_the_queue_frees_the_place() -> None:
    async with running(max_running=1) as (app, client):
        first = Exchange.post(CHAT, chat_body(**LONG))
        runner = asyncio.create_task(first.run(app))
        await busy(app)
        waiting = Exchange.post(CHAT, chat_body(stream=True, **LONG))
        waiter = asyncio.create_task(waiting.run(app))
        await busy(app, "waiting")
        waiting.leave.set()
        await asyncio.wait_for(waiter, 5)
        assert app.state.readiness.stats().waiting == 0
        first.leave.set()
        await asyncio.wait_for(runner, 5)
        await idle(app)
        await chat(client)


async def test_many_streams_dropped_at_once_leave_nothing_behind() -> None:
    async with running() as (app, client):
        for _ in range(2):
            exchanges = [Exchange.post(CHAT, chat_body(stream=True, **LONG)) for _ in range(10)]
            tasks = [asyncio.create_task(exchange.run(app)) for exchange in exchanges]
            await busy(app)
            for exchange in exchanges:
                exchange.leave.set()
            await asyncio.gather(*tasks)
            await idle(app)
        await chat(client)


async def test_a_failing_round_is_a_500_without_details(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret /etc/detail")

    with monkeypatch.context() as broken:
        broken.setattr(scheduler.engine, "run_round", fail)
        for more in ({}, {"stream": True}):
            response = await client.post(CHAT, json=chat_body(**more))
            assert "secret" not in error_of(response, 500, code="engine_error")
    await chat(client)


async def test_a_failure_amid_a_stream_is_an_error_event_without_done(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = scheduler.engine.run_round, 0

    def fail_later(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise RuntimeError("secret")
        return real(*arguments)

    monkeypatch.setattr(scheduler.engine, "run_round", fail_later)
    response = await client.post(CHAT, json=chat_body(stream=True, **LONG))
    assert response.status_code == 200
    events = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    assert "[DONE]" not in events
    error = json.loads(events[-1])["error"]
    assert error["code"] == "engine_error"
    assert "secret" not in error["message"]


async def test_shutting_down_lets_running_answers_finish() -> None:
    async with running() as (app, client):
        task = asyncio.create_task(chat(client, **{**LONG, "max_tokens": 60}))
        await busy(app)
    assert (await task)["usage"]["completion_tokens"] == 60


async def test_whatever_escapes_a_handler_is_a_plain_500(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    import server.openai_api.chat

    def fail(*_: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(server.openai_api.chat, "make_plan", fail)
    response = await client.post(CHAT, json=chat_body(), headers={"Origin": "http://page.test"})
    assert "secret" not in error_of(response, 500)
    assert response.headers["access-control-allow-origin"] == "*"
    assert response.headers["x-request-id"]
