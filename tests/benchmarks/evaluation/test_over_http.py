"""A real server, ours, and servers that misbehave."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.evaluation.choice import choose
from benchmarks.evaluation.evaluation import Evaluation
from benchmarks.evaluation.items import Item
from benchmarks.evaluation.over_http import OverHttp
from benchmarks.evaluation.reply import TooLongError
from benchmarks.evaluation.run import Plan
from benchmarks.http_door import RefusedError, root_of
from benchmarks.matrix import OFF, Setting, settings_matrix
from benchmarks.results_file import Results
from benchmarks.speed_run import served_model
from tests.server.listening import listening
from tests.server.serving import KEY, MODEL

ITEMS = [Item("talk", f"item/{n}", f"once upon a time there were {n}") for n in range(3)]
STRICT = settings_matrix(["strict"], ["auto"], ["4"])[0]
ANSWER = {
    "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}],
    "usage": {"completion_tokens": 1, "prompt_tokens": 2},
}


async def test_a_running_server_is_evaluated_by_what_it_says_of_itself(tmp_path: Path) -> None:
    plan = Plan(ITEMS, [OFF, STRICT], clients=2, max_tokens=8)
    async with listening() as (_, url):
        found = await Evaluation(plan, Results(tmp_path, "http"), ["mine"], drawn=False).over_http(url, MODEL, KEY)
        (off, strict) = found.rows
        assert (strict.equal, strict.measured_speedup) == (1.0, None)
        assert strict.tau is not None
        assert strict.estimated_speedup is not None
        assert (off.cut, off.tokens) == (1.0, 24)
        asker = OverHttp(url, MODEL, KEY)
        with pytest.raises(TooLongError):
            await asker.ask("the sea is wide " * 300, {}, 8)
        with pytest.raises(RefusedError, match=r"HTTP 400: .*num_draft_tokens"):
            await asker.check(Setting("bad", {"num_draft_tokens": 999}), {})
        await asker.close()


async def test_a_foreign_server_gets_openai_s_fields_alone(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(request: Request) -> Response:
        bodies.append(await request.json())
        return JSONResponse(ANSWER)

    plan = Plan(ITEMS, choose([], [], ["auto"], ["15"], [], ours=False).settings, clients=2, max_tokens=8)
    async with serving(answer) as url:
        found = await Evaluation(plan, Results(tmp_path, "http"), ["mine"], drawn=False).over_http(url, "any", "none")
    assert {frozenset(body) for body in bodies[1:]} == {
        frozenset({"model", "messages", "max_tokens", "temperature", "seed"})
    }
    (row,) = found.rows
    assert (row.items, row.estimated_speedup, row.loosened) == (3, None, {})


async def test_a_full_server_is_asked_again_and_a_broken_one_given_up_on() -> None:
    statuses = iter([429, 503, 200, *[500] * 6])

    async def answer(_request: Request) -> Response:
        status = next(statuses)
        return JSONResponse(ANSWER if status == 200 else {"error": {"message": f"no: {status}"}}, status)

    async with serving(answer) as url:
        asker = OverHttp(url, "any", wait_seconds=0.001)
        reply, _ = await asker.ask("hello", {}, 8)
        assert (reply.text, reply.cut) == ("hello", False)
        with pytest.raises(RefusedError, match="HTTP 500: no: 500"):
            await asker.ask("hello", {}, 8)
        assert next(statuses, None) is None
        await asker.close()
    gone = OverHttp("http://127.0.0.1:1", "any", wait_seconds=0.001)
    with pytest.raises(RefusedError, match="cannot be reached"):
        await gone.ask("hello", {}, 8)
    await gone.close()


async def test_an_answer_in_another_shape_is_refused() -> None:
    bodies = ['{"choices": []}', '{"choices": [{"message": "x"}], "usage": {}}', "[1]", "[" * 100_000, "<html>"]
    said = iter([*bodies, *bodies[2:]])

    async def answer(_request: Request) -> Response:
        return Response(next(said), media_type="application/json")

    async with serving(answer) as url:
        asker = OverHttp(url, "any")
        for complaint in ("not answer as OpenAI's", "not answer as OpenAI's", "no JSON object", "no JSON", "no JSON"):
            with pytest.raises(RefusedError, match=complaint):
                await asker.ask("hello", {}, 8)
        for _ in bodies[2:]:
            with pytest.raises(RefusedError, match="answers with no JSON"):
                await asker.check(OFF, {})
        await asker.close()


async def test_a_server_that_lists_no_models_is_refused() -> None:
    async def models(_request: Request) -> Response:
        return JSONResponse([1])

    async with serving(models, "/v1/models") as url:
        with pytest.raises(RefusedError, match="gives no model"):
            await served_model(root_of(url), "none")


@asynccontextmanager
async def serving(
    answer: Callable[[Request], Awaitable[Response]], path: str = "/v1/chat/completions"
) -> AsyncIterator[str]:
    app = Starlette(routes=[Route(path, answer, methods=["GET", "POST"])])
    with socket.create_server(("127.0.0.1", 0)) as port:
        http = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        http.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
        task = asyncio.create_task(http.serve(sockets=[port]))
        try:
            yield f"http://127.0.0.1:{port.getsockname()[1]}/v1"
        finally:
            http.should_exit = True
            await task
