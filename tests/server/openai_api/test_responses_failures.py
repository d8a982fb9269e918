"""/v1/responses: a client's mistake is a 400 that names the parameter, a failure the stream's last event."""

import asyncio
import json
from typing import Any

import httpx
import pytest

import scheduler.engine
from server.errors import ApiError
from server.openai_api.responses_object import ResponseObject
from server.openai_api.responses_schemas import ResponsesBody
from tests.server.asgi import Exchange, until
from tests.server.openai_api.responses import PATH, body, events_of, respond
from tests.server.serving import error_of, only_ascii, running

LONG = {"max_output_tokens": 200, "logit_bias": only_ascii(), "verifier": "off"}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": "a"}] * 2049}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0"),
        ({"input": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}, "input"),
        ({"instructions": 5}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"return_provenance": True}, "return_provenance"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"include": "x"}, "include"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"best_of": 2, "typical_p": 0.5}, "typical_p"),
        ({"truncation": "auto"}, "truncation"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"n": 2}, "n"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"verifier": "nope"}, "verifier"),
        ({"verifier": {"type": "fly", "window": 6}, "num_draft_tokens": 6}, "verifier.window"),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
async def test_a_wrong_value_is_a_400_with_its_parameter(
    client: httpx.AsyncClient, change: dict[str, Any], param: str
) -> None:
    for stream in ({}, {"stream": True}):
        error_of(await client.post(PATH, json={**body(), **stream, **change}), 400, param=param)


async def test_options_of_a_stream_need_one(client: httpx.AsyncClient) -> None:
    options = {"stream_options": {"include_obfuscation": False}}
    error_of(await client.post(PATH, json=body(**options)), 400, param="stream_options")
    response = await client.post(PATH, json=body(stream=True, stream_options={"include_obfuscation": True}))
    error_of(response, 400, param="stream_options.include_obfuscation")


async def test_what_belongs_to_another_endpoint_says_what_to_use_instead(client: httpx.AsyncClient) -> None:
    asked_as_chat = {"model": "org/tiny", "messages": [{"role": "user", "content": "x"}]}
    assert "'input'" in error_of(await client.post(PATH, json=asked_as_chat), 400, param="messages")


async def test_missing_fields_are_named(client: httpx.AsyncClient) -> None:
    for field in ("model", "input"):
        asked = body()
        del asked[field]
        error_of(await client.post(PATH, json=asked), 400, param=field, code="missing_required_parameter")
    error_of(await client.post(PATH, json={**body(), "model": "no-such"}), 404, code="model_not_found")


async def test_a_prompt_beyond_the_context_is_refused_streamed_or_not(client: httpx.AsyncClient) -> None:
    for given in ("word " * 300, [{"role": "user", "content": "word " * 200_000}]):
        for more in ({}, {"stream": True}):
            response = await client.post(PATH, json=body(given, **more))
            message = error_of(response, 400, param="input", code="context_length_exceeded")
            assert message.startswith("This model's maximum context length is 256 tokens")


async def test_a_failing_round_is_a_500_without_details(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret")

    with monkeypatch.context() as broken:
        broken.setattr(scheduler.engine, "run_round", fail)
        for more in ({}, {"stream": True}):
            assert "secret" not in error_of(await client.post(PATH, json=body(**more)), 500, code="engine_error")
    await respond(client)


async def test_a_failure_amid_a_stream_is_a_failed_response(
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
    events = await events_of(client, **LONG)
    assert [event["type"] for event in events if event["type"].endswith((".completed", ".done"))] == []
    assert events[-1]["type"] == "response.failed"
    response = events[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert "secret" not in json.dumps(response)
    (item,) = response["output"]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert item["status"] == "incomplete"
    assert item["content"][0]["text"] == "".join(deltas) != ""


async def test_whatever_breaks_a_stream_is_a_failed_response_without_details(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    import server.openai_api.responses_object

    def fail(*_: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(server.openai_api.responses_object, "_usage", fail)
    events = await events_of(client)
    assert events[-1]["type"] == "response.failed"
    assert "secret" not in json.dumps(events[-1])


def test_a_failure_says_whose_fault_it_was() -> None:
    response = ResponseObject("resp_1", 0, "m", ResponsesBody.model_validate(body()))
    assert response.failed([], ApiError(500, "broken"))["error"] == {"code": "server_error", "message": "broken"}
    assert response.failed([], ApiError(400, "too complex"))["error"]["code"] == "invalid_prompt"


@pytest.mark.parametrize("streamed", [False, True])
async def test_leaving_frees_the_sequence(streamed: bool) -> None:
    async with running() as (app, client):
        exchange = Exchange.post(PATH, body(stream=streamed, **LONG))
        task = asyncio.create_task(exchange.run(app))

        async def busy() -> bool:
            return bool(app.state.readiness.stats().running)

        async def idle() -> bool:
            stats = app.state.readiness.stats()
            return not (stats.running or stats.waiting or stats.blocks_used)

        await until(busy)
        exchange.leave.set()
        await asyncio.wait_for(task, 5)
        await until(idle)
        assert app.state.readiness.stats().finished["abort"] == 1
        await respond(client)
