"""Keys, request ids, CORS, body size and patience."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from server.serving_config import Limits
from tests.server.asgi import Exchange
from tests.server.serving import KEY, chat_body, error_of, running, serve_config

CHAT = "/v1/chat/completions"
ROUTES = [
    CHAT,
    "/v1/completions",
    "/v1/models",
    "/v1/models/x",
    "/metrics",
    "/docs",
    "/openapi.json",
    "/no/such",
    "/webs",
    "/web",
]


@pytest.mark.parametrize("path", [*ROUTES, "//v1/models", "/v1//models", "/health/", "/HEALTH"])
async def test_every_route_but_health_needs_a_key(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(f"http://test{path}", headers={"Authorization": ""})
    message = error_of(response, 401, code="invalid_api_key")
    assert "API key" in message
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header",
    ["Bearer wrong", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer", "Bearer ", f"Basic {KEY}", KEY, "bearer"],
)
async def test_wrong_keys_are_refused(client: httpx.AsyncClient, header: str) -> None:
    response = await client.post(CHAT, json=chat_body(), headers={"Authorization": header})
    assert KEY not in error_of(response, 401, code="invalid_api_key")


async def test_the_scheme_is_case_insensitive_and_any_key_of_the_list_works() -> None:
    async with running(serve_config(api_keys=("one", "two"))) as (_, client):
        for header in ("Bearer one", "bearer two", "BEARER two"):
            assert (await client.get("/v1/models", headers={"Authorization": header})).status_code == 200


async def test_health_is_open_and_without_keys_everything_is(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health", headers={"Authorization": ""})).json() == {"status": "ok"}
    async with running(serve_config(api_keys=())) as (_, open_client):
        assert (await open_client.get("/v1/models", headers={"Authorization": ""})).status_code == 200


async def test_a_wrong_key_is_refused_before_the_body_is_read() -> None:
    async with running() as (app, _):
        exchange = Exchange(CHAT, b"{", headers={"authorization": "Bearer no", "content-length": "5000000"})
        exchange.more_body = True
        await asyncio.wait_for(exchange.run(app), 5)
        assert exchange.status == 401
        assert exchange.received == 0


async def test_request_ids_are_taken_over_if_harmless(client: httpx.AsyncClient) -> None:
    response = await client.get("/health", headers={"x-request-id": "trace-1:2/3"})
    assert response.headers["x-request-id"] == "trace-1:2/3"
    for given in ("a b", "x" * 200, "<script>", ""):
        response = await client.get("/health", headers={"x-request-id": given})
        assert response.headers["x-request-id"].startswith("req_")


async def test_preflights_need_no_key_and_errors_carry_cors_headers(client: httpx.AsyncClient) -> None:
    headers = {
        "Origin": "http://page.test",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
        "Authorization": "",
    }
    preflight = await client.options(CHAT, headers=headers)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "*"
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    for response in (
        await client.post(CHAT, json={}, headers={"Origin": "http://page.test"}),
        await client.post(CHAT, json={}, headers={"Origin": "http://page.test", "Authorization": ""}),
    ):
        assert response.headers["access-control-allow-origin"] == "*"


async def test_cors_is_off_unless_configured() -> None:
    async with running(serve_config(cors_origins=())) as (_, client):
        response = await client.get("/health", headers={"Origin": "http://page.test"})
        assert "access-control-allow-origin" not in response.headers
        preflight = {"Origin": "http://page.test", "Access-Control-Request-Method": "POST", "Authorization": ""}
        assert (await client.options(CHAT, headers=preflight)).status_code == 405
    async with running(serve_config(cors_origins=("http://mine.test",))) as (_, client):
        response = await client.get("/health", headers={"Origin": "http://mine.test"})
        assert response.headers["access-control-allow-origin"] == "http://mine.test"
        response = await client.get("/health", headers={"Origin": "http://page.test"})
        assert "access-control-allow-origin" not in response.headers


def small() -> Limits:
    return replace(Limits(), max_body_bytes=2000, body_timeout=0.2)


async def test_big_bodies_are_413_declared_or_counted() -> None:
    async with running(serve_config(limits=small())) as (_, client):
        error_of(await client.post(CHAT, json=chat_body("a" * 3000)), 413, code="request_too_large")

        async def parts():  # type: ignore[no-untyped-def]
            for _ in range(100):
                yield b" " * 100

        error_of(await client.post(CHAT, content=parts()), 413, code="request_too_large")
        assert (await client.post(CHAT, json=chat_body())).status_code == 200


@pytest.mark.parametrize("declared", [True, False])
async def test_a_big_body_is_answered_while_it_arrives_and_read_to_its_end(declared: bool) -> None:
    """A connection closed on arriving data is reset, and the client may never see why."""
    async with running(serve_config(limits=small())) as (app, _):
        exchange = Exchange(CHAT, b" " * 3000, headers={"content-length": "9000"} if declared else {}, more_body=True)
        answered: list[int] = []
        exchange.on_message = lambda message: answered.append(exchange.received)
        exchange.more = [b" " * 3000, b" " * 3000]
        await asyncio.wait_for(exchange.run(app), 5)
        assert exchange.status == 413
        assert json.loads(exchange.content)["error"]["code"] == "request_too_large"
        assert answered[1] == (0 if declared else 1)  # the whole answer was sent then
        assert exchange.received == 3
        assert [message.get("more_body") for message in exchange.messages[1:]] == [True, False]


async def test_a_big_body_that_never_ends_is_not_waited_for_without_end() -> None:
    async with running(serve_config(limits=small())) as (app, _):
        exchange = Exchange(CHAT, b" " * 3000, more_body=True)
        await asyncio.wait_for(exchange.run(app), 5)
        assert exchange.status == 413
        assert exchange.response_headers["connection"] == "close"


async def test_chunked_bodies_are_read_whole(client: httpx.AsyncClient) -> None:
    raw = json.dumps(chat_body()).encode()

    async def parts():  # type: ignore[no-untyped-def]
        for start in range(0, len(raw), 7):
            yield raw[start : start + 7]

    assert (await client.post(CHAT, content=parts())).status_code == 200


async def test_a_half_sent_body_is_a_408() -> None:
    async with running(serve_config(limits=small())) as (app, _):
        exchange = Exchange(CHAT, b'{"model"', more_body=True)
        await asyncio.wait_for(exchange.run(app), 5)
        assert exchange.status == 408
        assert json.loads(exchange.content)["error"]["code"] == "request_timeout"
        assert exchange.response_headers["connection"] == "close"


async def test_a_client_that_leaves_amid_its_body_gets_nothing() -> None:
    async with running() as (app, _):
        exchange = Exchange(CHAT, b"{", more_body=True)
        exchange.leave.set()
        await asyncio.wait_for(exchange.run(app), 5)
        assert exchange.messages == []


async def test_any_content_type_is_read_as_json(client: httpx.AsyncClient) -> None:
    content, headers = json.dumps(chat_body()).encode(), {"Content-Type": "text/plain"}
    assert (await client.post(CHAT, content=content, headers=headers)).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics", "/info", "/v1/responses/resp_1", "/no/such"])
async def test_head_is_get_without_the_body(client: httpx.AsyncClient, path: str) -> None:
    head, get = await client.head(path), await client.get(path)
    assert head.status_code == get.status_code
    assert head.content == b""
    if path != "/metrics":  # whose length changes
        assert head.headers["content-length"] == str(len(get.content))
    assert head.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [(CHAT, "POST"), ("/health", "GET, HEAD"), ("/v1/responses/resp_1", "DELETE, GET, HEAD"), ("/", "GET, HEAD, POST")],
)
async def test_a_method_that_is_not_allowed_is_told_which_are(
    client: httpx.AsyncClient, path: str, allowed: str
) -> None:
    response = await client.put(path)
    error_of(response, 405)
    assert response.headers["allow"] == allowed
