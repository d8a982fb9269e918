"""OpenAI's own SDK over a real socket: what in-process calls cannot show."""

import asyncio

import httpx
import openai
import pytest

import server.streaming
from tests.server.asgi import until
from tests.server.listening import listening, sdk
from tests.server.serving import KEY, MODEL, chat_body, only_ascii

LONG = {"max_tokens": 200, "logit_bias": only_ascii()}
MESSAGES = [{"role": "user", "content": "once upon a time"}]


async def test_the_sdk_reads_answers_streams_and_extras() -> None:
    async with listening() as (_, url), sdk(url) as client:
        extra = {"verifier": {"type": "lossy", "threshold": 0.5}, "return_provenance": True, **LONG}
        whole = await client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            temperature=0,
            max_tokens=40,
            logprobs=True,
            extra_body=extra | {"max_tokens": 40},
        )
        assert whole.model_extra is not None
        report = whole.model_extra["speculation"]
        assert report["verifier"] == "lossy"
        assert whole.choices[0].logprobs is not None
        entries = whole.choices[0].logprobs.content or []
        drafted = [entry for entry in entries if (entry.model_extra or {})["provenance"] in ("native", "lenient")]
        assert len(drafted) == report["accepted_tokens"] > 0

        text, last = "", None
        async for chunk in await client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            temperature=0,
            stream=True,
            extra_body=extra | {"max_tokens": 40, "logprobs": True},
        ):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            last = chunk
        assert text == whole.choices[0].message.content
        assert last is not None
        assert (last.model_extra or {})["speculation"]["accepted_tokens"] == report["accepted_tokens"]


async def test_the_sdk_raises_the_right_errors() -> None:
    async with listening() as (_, url), sdk(url) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="no-such", messages=MESSAGES, stream=True)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=9)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.BadRequestError) as long:
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 900}])
        assert long.value.code == "context_length_exceeded"
        async with sdk(url, "wrong") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL


@pytest.mark.parametrize("streamed", [True, False])
async def test_closing_the_socket_aborts_the_generation(streamed: bool) -> None:
    async with listening() as (app, url):
        stats = app.state.readiness.stats
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(headers=headers) as client:
            body = chat_body(stream=streamed, verifier="off", **LONG)
            task = asyncio.create_task(client.post(f"{url}/chat/completions", json=body, timeout=30))

            async def running() -> bool:
                return bool(stats().running)

            await until(running)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

            async def idle() -> bool:
                return not stats().running and stats().blocks_used == 0

            await until(idle)
        assert stats().finished["abort"] == 1


async def test_a_slow_answer_streams_its_headers_and_keep_alive_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.streaming, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(server.streaming, "PING_SECONDS", 0.02)
    monkeypatch.setattr("server.openai_api.answer.SETTLE_SECONDS", 0.0)
    async with listening() as (_, url), httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
        body = chat_body(stream=True, verifier="off", **LONG)
        response = await client.post(f"{url}/chat/completions", json=body, timeout=30)
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert "content-length" not in response.headers
        assert ": ping\n\n" in response.text
        assert response.text.endswith("data: [DONE]\n\n")


async def test_connections_are_kept_after_errors_and_streams() -> None:
    async with listening() as (_, url):
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        async with httpx.AsyncClient(limits=limits, headers={"Authorization": f"Bearer {KEY}"}) as client:
            ports = set()
            for content in (b"{bad", b"", None):
                body = {"json": chat_body(stream=True)} if content is None else {"content": content}
                async with client.stream("POST", f"{url}/chat/completions", **body) as response:
                    await response.aread()
                    ports.add(response.extensions["network_stream"].get_extra_info("client_addr")[1])
            assert len(ports) == 1
