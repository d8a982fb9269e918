"""A client's mistake is a quick 400 that names the parameter, never a 5xx, and the server lives on."""

import json
import time
from typing import Any

import httpx
import pytest

from tests.server.serving import chat, chat_body, completion_body, error_of, running, serve_config

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "ten"}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": -0.5}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 10**30}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 10**40}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": [1, 2]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 2000}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "x"}}, "stream_options.include_usage"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"return_provenance": True}, "return_provenance"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"999999999": 1}}, "logit_bias"),
        ({"logit_bias": {"420": 1}}, "logit_bias"),
        ({"logit_bias": {"1": True}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
        ({"stop_token_ids": [420]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [1] * 100}, "stop_token_ids"),
        ({"min_tokens": 13}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"ignore_eos": "true"}, "ignore_eos"),
        ({"priority": 10**9}, "priority"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"store": True}, "store"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": "x"}, "tools"),
        ({"response_format": {"type": "nope"}}, "response_format.type"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"verifier": "nope"}, "verifier"),
        ({"verifier": 5}, "verifier"),
        ({"verifier": {"window": 3}}, "verifier.type"),
        ({"verifier": {"type": "fly", "entropy_threshold": -1}}, "verifier.entropy_threshold"),
        ({"verifier": {"type": "fly", "window": 6}, "num_draft_tokens": 6}, "verifier.window"),
        ({"drafter": "oracle"}, "drafter"),
        ({"num_draft_tokens": 0}, "num_draft_tokens"),
        ({"num_draft_tokens": 33}, "num_draft_tokens"),
        ({"draft_length": "long"}, "draft_length"),
        ({"strict_prefix": -1}, "strict_prefix"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [1]}, "messages.0"),
        ({"messages": [{"role": "user"}]}, "messages.0"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}] * 2049}, "messages"),
        ({"model": 5}, "model"),
        ({"model": None}, "model"),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
async def test_a_wrong_value_is_a_400_with_its_parameter(client: httpx.AsyncClient, change: dict, param: str) -> None:
    for more in ({}, {"stream": True}):
        body = {**chat_body(), **(more if "stream" not in change and "stream_options" not in change else {}), **change}
        error_of(await client.post(CHAT, json=body), 400, param=param)


OTHERS = {"bad_words": ["x"], "allowed_token_ids": [1], "truncate_prompt_tokens": 5, "typical_p": 0.5, "grammar": "x"}
OTHERS |= {"regex": "x", "ebnf": "x", "json_schema": {}, "logits_processors": ["x"], "length_penalty": 2.0}
OTHERS |= {"min_length": 5, "thinking_token_budget": 5, "enable_thinking": False, "skip_special_tokens": False}
NEUTRAL = {"bad_words": [], "typical_p": 1.0, "length_penalty": 1.0, "min_length": 0, "skip_special_tokens": True}


async def test_what_would_change_the_answer_elsewhere_is_refused_by_name(client: httpx.AsyncClient) -> None:
    for name, value in (OTHERS | {"best_of": 2, "echo": True, "suffix": "x"}).items():
        error_of(await client.post(CHAT, json=chat_body(**{name: value})), 400, name, "unsupported_parameter")
    for name, value in (OTHERS | {"tools": [{}], "top_logprobs": 2}).items():
        refused = await client.post("/v1/completions", json=completion_body(**{name: value}))
        error_of(refused, 400, name, "unsupported_parameter")
    await chat(client, **dict.fromkeys(OTHERS), best_of=1, echo=False, suffix="")
    await chat(client, **NEUTRAL)


async def test_errors_say_what_is_allowed(client: httpx.AsyncClient) -> None:
    async def message(**change: Any) -> str:
        return error_of(await client.post(CHAT, json=chat_body(**change)), 400)

    assert "2" in await message(temperature=9)
    assert "off, strict, fly, csd, hybrid, lossy, typical" in await message(verifier="nope")
    assert "auto, model, prompt_lookup, multilevel" in await message(drafter="x")
    assert "from 1 to 32" in await message(num_draft_tokens=50)
    assert "system must come first" in await message(
        messages=[{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]
    )


async def test_missing_fields_are_named(client: httpx.AsyncClient) -> None:
    for field in ("model", "messages"):
        body = chat_body()
        del body[field]
        error_of(await client.post(CHAT, json=body), 400, param=field, code="missing_required_parameter")


async def test_an_unknown_model_is_a_404(client: httpx.AsyncClient) -> None:
    for name in ("no-such", "", "../../etc/passwd", "a\x00b", "x" * 100_000, "\u202e"):
        message = error_of(await client.post(CHAT, json={**chat_body(), "model": name}), 404, code="model_not_found")
        assert len(message) < 300
        assert message.endswith(f"This server has {chat_body()['model']!r}.")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"{'a':1}",
        b"\xff\xfe{}",
        b'{"messages": NaN}',
        b'{"a": 1, "a": 2}',
        b'{"temperature": 1e999}',
        b'{"a": "\\ud800"}',
        b"9" * 5000,
        b"[" * 200_000 + b"]" * 200_000,
        b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    ],
    ids=lambda raw: repr(raw[:24]),
)
async def test_malformed_json_is_refused_quickly(client: httpx.AsyncClient, raw: bytes) -> None:
    start = time.monotonic()
    error_of(await client.post(CHAT, content=raw), 400)
    assert time.monotonic() - start < 2


async def test_non_finite_numbers_are_refused(client: httpx.AsyncClient) -> None:
    for literal in ("NaN", "Infinity", "-Infinity", "1e999"):
        raw = json.dumps(chat_body()).replace('"temperature": 0', f'"temperature": {literal}')
        error_of(await client.post(CHAT, content=raw), 400)


async def test_a_prompt_beyond_the_context_is_refused_streamed_or_not(client: httpx.AsyncClient) -> None:
    for content in ("word " * 300, "word " * 200_000):
        for more in ({}, {"stream": True}):
            response = await client.post(CHAT, json=chat_body(content, **more))
            message = error_of(response, 400, param="messages", code="context_length_exceeded")
            assert message.startswith("This model's maximum context length is 256 tokens")
    await chat(client)


async def test_unknown_routes_and_methods(client: httpx.AsyncClient) -> None:
    error_of(await client.post("/v1/no/such", json={}), 404)
    error_of(await client.get(CHAT), 405)
    error_of(await client.get("/v1/models/no-such"), 404, code="model_not_found")


async def test_what_the_server_forbids_is_refused() -> None:
    config = serve_config(allowed_verifiers=("off", "strict"), allowed_drafters=("prompt_lookup",), api_keys=())
    async with running(config) as (_, client):
        message = error_of(await client.post(CHAT, json=chat_body(verifier="fly")), 400, param="verifier")
        assert "off, strict" in message
        message = error_of(await client.post(CHAT, json=chat_body(drafter="model")), 400, param="drafter")
        assert "auto, prompt_lookup" in message
        assert (await chat(client))["speculation"]["drafter"] == "prompt_lookup"


async def test_without_a_draft_model_prompt_lookup_drafts() -> None:
    async with running(draft=False) as (_, client):
        assert (await chat(client))["speculation"]["drafter"] == "prompt_lookup"
        error_of(await client.post(CHAT, json=chat_body(drafter="multilevel")), 400, param="drafter")


async def test_settings_that_disarm_fly_show_as_a_warning() -> None:
    async with running(serve_config(default_num_draft_tokens=4)) as (_, client):
        report = (await chat(client, verifier="fly"))["speculation"]
        assert "window" in report["warnings"][0]


async def test_a_full_queue_is_an_honest_429() -> None:
    async with running(max_running=1, max_waiting=0) as (_, client):
        response = await client.post(CHAT, json=chat_body(n=3))
        error_of(response, 429, code="queue_full")
        assert int(response.headers["retry-after"]) >= 1
        await chat(client)


@pytest.mark.parametrize("silent", [{}, {"tool_calls": []}, {"reasoning_content": "hm"}, {"refusal": "no"}])
async def test_an_assistants_turn_without_words_can_be_sent_back(client: httpx.AsyncClient, silent: Any) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", **silent}, {"role": "user", "content": "b"}]
    empty = [turns[0], {**turns[1], "content": ""}, turns[2]]
    usages = [(await chat(client, messages=messages))["usage"]["prompt_tokens"] for messages in (turns, empty)]
    assert usages[0] == usages[1]
