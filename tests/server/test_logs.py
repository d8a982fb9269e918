"""Lines of the log: one event each, with the request's ids, without keys and prompts."""

import asyncio
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from opentelemetry.trace import SpanContext

from server.logs import LogFormat, about, log_to_stderr, of_request, set_trace
from tests.server.serving import chat_body, running

SPAN = SpanContext(trace_id=0xABC, span_id=0xD, is_remote=False)


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_lines_say_when_what_and_for_which_request(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("info", "json")
    logging.getLogger("server.x").info("%d tokens\nof it", 3)
    with of_request("req_1"):
        set_trace(SPAN)
        logging.getLogger("uvicorn.error").warning("odd")
    logging.getLogger("server.x").debug("not told")
    first, second = lines(capsys)
    assert first.pop("time").endswith("+00:00")
    assert first == {"level": "info", "logger": "server.x", "message": "3 tokens\nof it"}
    assert second["request_id"] == "req_1"
    assert second["trace_id"] == f"{0xABC:032x}"
    assert second["span_id"] == f"{0xD:016x}"


def test_an_exception_and_a_warning_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("info", "json")
    try:
        raise OSError("disk on fire")
    except OSError:
        logging.getLogger("server.x").exception("it failed")
    warnings.warn("old ways", DeprecationWarning, stacklevel=1)
    failed, *warned = lines(capsys)
    assert "OSError: disk on fire" in failed["exception"]
    assert all(line["logger"] == "py.warnings" for line in warned)


def test_text_lines_are_as_short_as_before_and_have_ids_where_known(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("info", "text")
    logging.getLogger("server.x").info("ready")
    with of_request("req_1"):
        logging.getLogger("server.x").info("asked")
    plain, known = capsys.readouterr().err.splitlines()
    assert plain.endswith(" INFO ready")
    assert known.endswith(" INFO asked [request_id=req_1]")


async def test_ids_follow_tasks_and_threads_and_end_with_the_request() -> None:
    async def serve(name: str) -> tuple[dict[str, str], dict[str, str]]:
        with of_request(name):
            await asyncio.sleep(0)
            task = asyncio.create_task(asyncio.to_thread(about))
            return about(), await task

    pairs = await asyncio.gather(serve("a"), serve("b"))
    assert pairs == [({"request_id": "a"}, {"request_id": "a"}), ({"request_id": "b"}, {"request_id": "b"})]
    assert about() == {}


@pytest.mark.parametrize("form", ["text", "json"])
async def test_no_key_and_nothing_a_client_wrote_is_logged_even_when_all_fails(
    form: LogFormat, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no forward today")

    log_to_stderr("debug", form)
    async with running() as (_, client):
        await _ask_oddly(client)
        monkeypatch.setattr("scheduler.engine.run_round", broken)
        response = await client.post(
            "/v1/chat/completions", json=chat_body("zanzibar"), headers={"x-request-id": "r-9"}
        )
        assert response.status_code == 500
    logged = capsys.readouterr().err
    assert "no forward today" in logged
    assert "zanzibar" not in logged
    assert "sk-" not in logged
    assert ('"request_id": "r-9"' if form == "json" else "request_id=r-9") in logged


async def _ask_oddly(client: httpx.AsyncClient) -> None:
    path = "/v1/chat/completions"
    assert (await client.post(path, json=chat_body("zanzibar", stop=["zanzibar"]))).status_code == 200
    streamed = await client.post(path, json=chat_body("zanzibar", stream=True))
    assert streamed.status_code == 200
    echoed = {"model": "org/tiny", "prompt": "zanzibar", "echo": True, "stream": True, "max_tokens": 2}
    assert (await client.post("/v1/completions", json=echoed)).status_code == 200
    assert (await client.post(path, json=chat_body("zanzibar", temperature="zanzibar"))).status_code == 400
    assert (await client.post(path, content=b'{"zanzibar')).status_code == 400
    wrong = {"Authorization": "Bearer sk-wrong-zanzibar"}
    assert (await client.post(path, json=chat_body(), headers=wrong)).status_code == 401
