"""What every endpoint owes every client, whatever it asks: ids, CORS, 400 for its mistakes, nothing fetched, no work
for clients that have left."""

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.server.asgi import Exchange, until
from tests.server.serving import MODEL, chat_body, completion_body, only_ascii, running, serve_config

TEXT = "once upon a time"
RESPONSE = {"model": MODEL, "input": TEXT, "max_output_tokens": 12, "temperature": 0}
GENERATE = {"inputs": TEXT, "parameters": {"max_new_tokens": 12}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat_body(),
    "/v1/completions": completion_body(),
    "/v1/responses": RESPONSE,
    "/generate": GENERATE,
    "/generate_stream": GENERATE,
    "/": GENERATE,
    "/tokenize": {"prompt": TEXT},
    "/detokenize": {"tokens": [5]},
    "/chat_tokenize": {"messages": [{"role": "user", "content": TEXT}]},
}
GENERATING = list(BODIES)[:6]
HEADERS = {"Origin": "http://page.test", "x-request-id": "mine-1"}


def check_headers(response: httpx.Response) -> None:
    assert response.headers["x-request-id"] == "mine-1"
    assert response.headers["access-control-allow-origin"] == "*"
    assert "x-request-id" in response.headers["access-control-expose-headers"]


async def test_every_post_endpoint_is_looked_at_here(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert {path for path, item in paths.items() if "requestBody" in item.get("post", {})} == set(BODIES)


@pytest.mark.parametrize("path", BODIES)
async def test_answers_and_refusals_carry_the_request_id_and_cors_headers(path: str) -> None:
    async with running(serve_config()) as (_, client):
        body = json.dumps(BODIES[path])
        for status, more in (
            (200, {"content": body}),
            (400, {"content": "{"}),
            (401, {"content": body, "headers": {**HEADERS, "Authorization": "Bearer no"}}),
            (413, {"content": b" " * (9 << 20)}),
        ):
            response = await client.post(path, **{"headers": HEADERS, **more})
            assert response.status_code == status
            check_headers(response)
        refused = await client.put(path, headers=HEADERS)
        assert refused.status_code == 405
        check_headers(refused)
        preflight = {**HEADERS, "Access-Control-Request-Method": "POST", "Authorization": ""}
        assert (await client.options(path, headers=preflight)).headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize("path", GENERATING)
async def test_streams_are_not_to_be_cached_and_carry_the_same_headers(client: httpx.AsyncClient, path: str) -> None:
    response = await client.post(path, json={**BODIES[path], "stream": True}, headers=HEADERS)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    check_headers(response)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": "\x00"}',
        b'{"a": 1} x',
        '{"a": 1}'.encode("utf-16"),
    ],
)
async def test_what_is_no_strict_json_is_a_400(client: httpx.AsyncClient, path: str, data: bytes) -> None:
    assert (await client.post(path, content=data)).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", GENERATING)
async def test_an_overlong_prompt_is_a_400_with_the_sentence_that_clients_look_for(
    client: httpx.AsyncClient, path: str, stream: bool
) -> None:
    field = next(name for name in ("messages", "prompt", "input", "inputs") if name in BODIES[path])
    long = "the sea is wide and blue " * 200
    prompt = [{"role": "user", "content": long}] if field == "messages" else long
    response = await client.post(path, json={**BODIES[path], field: prompt, "stream": stream})
    assert response.status_code == 400
    error = response.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message.startswith("This model's maximum context length is 256 tokens.")
    assert isinstance(error, str) or error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", GENERATING)
async def test_leaving_frees_the_sequence(path: str, stream: bool) -> None:
    long = {"max_tokens": 200, "max_output_tokens": 200, "logit_bias": only_ascii(), "verifier": "off"}
    body = dict(BODIES[path])
    if "parameters" in body:
        body["parameters"] = {"max_new_tokens": 200, "logit_bias": only_ascii(), "verifier": "off"}
    else:
        body |= {key: value for key, value in long.items() if key in body or not key.startswith("max_")}
    async with running() as (app, _):
        exchange = Exchange.post(path, {**body, "stream": stream})
        task = asyncio.create_task(exchange.run(app))
        await until(lambda: runs(app, 1))
        exchange.leave.set()
        await asyncio.wait_for(task, 5)
        await until(lambda: runs(app, 0))
        stats = app.state.readiness.stats()
        assert stats.blocks_used == 0
        assert stats.finished["abort"] == 1


async def runs(app: FastAPI, count: int) -> bool:
    return bool(app.state.readiness.stats().running == count)


async def test_nothing_that_a_request_names_is_fetched(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    url = "http://page.test/x"
    schema = {"$ref": url}
    image = [{"type": "image_url", "image_url": {"url": url}}]
    for path, body in (
        ("/v1/chat/completions", chat_body(image)),
        ("/v1/chat/completions", chat_body(guided_json=schema)),
        ("/v1/chat/completions", chat_body(guided_json={"$schema": url, "$id": url, "$ref": "other.json"})),
        (
            "/v1/responses",
            {**RESPONSE, "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]},
        ),
        ("/v1/responses", {**RESPONSE, "tools": [{"type": "mcp", "server_url": url}]}),
        ("/generate", {"inputs": TEXT, "parameters": {"grammar": {"type": "json", "value": schema}}}),
    ):
        assert (await client.post(path, json=body)).status_code == 400, body
