"""Tools and reasoning in /v1/chat/completions, against the real engine."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from server.app import create_app
from server.language import Language
from server.serving_config import Served
from server.telemetry.telemetry import Telemetry
from tests.server.openai_api.calls import (
    CALL,
    CHAT,
    FORCED,
    NAMED,
    ROOM,
    TOOLS,
    anonymous,
    calls_of,
    check_calls,
    function,
    saying,
)
from tests.server.serving import (
    chat,
    chat_body,
    client_of,
    error_of,
    running,
    serve_config,
    served,
    stream,
    text_of,
    tokenizer,
)


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with running(max_context=ROOM) as (_, client):
        yield client


async def test_calls_are_found_among_words(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    saying(monkeypatch, f'"Let me see.\\n" {CALL} "\\n" {CALL} "\\n"')
    more = {"tools": TOOLS, "max_tokens": 300}
    (choice,) = (await chat(client, **more))["choices"]
    assert choice["message"]["content"] == "Let me see."
    assert anonymous(choice["message"]["tool_calls"]) == [{"name": "weather", "arguments": '{"city": "Rome"}'}] * 2
    assert choice["finish_reason"] == "tool_calls"
    chunks = await stream(client, CHAT, chat_body(**more))
    assert text_of(chunks) == "Let me see."
    assert anonymous(calls_of(chunks)) == anonymous(choice["message"]["tool_calls"])
    (single,) = (await chat(client, **more, parallel_tool_calls=False))["choices"]
    assert anonymous(single["message"]["tool_calls"]) == [{"name": "weather", "arguments": '{"city": "Rome"}'}]


async def test_a_call_of_an_unknown_function_is_content(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    saying(monkeypatch, CALL)
    (choice,) = (await chat(client, tools=TOOLS[1:], max_tokens=100))["choices"]
    content = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    assert choice["message"] == {"role": "assistant", "content": content, "refusal": None}
    assert choice["finish_reason"] == "stop"


async def test_without_tools_nothing_is_read_as_a_call(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    saying(monkeypatch, CALL)
    for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        (choice,) = (await chat(client, **more, max_tokens=100))["choices"]
        assert choice["message"]["content"].startswith("<tool_call>{")


async def test_tools_that_must_not_be_called_are_not_shown(client: httpx.AsyncClient) -> None:
    plain = (await chat(client))["usage"]["prompt_tokens"]
    assert (await chat(client, tools=TOOLS, tool_choice="none"))["usage"]["prompt_tokens"] == plain
    assert (await chat(client, tools=TOOLS))["usage"]["prompt_tokens"] > plain


async def test_logprobs_list_the_tokens_of_calls_too(client: httpx.AsyncClient) -> None:
    more = {**FORCED, "logprobs": True, "seed": 1}
    answer = await chat(client, **more)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    assert "".join(entry["token"] for entry in entries).startswith("<tool_call>")
    chunks = await stream(client, CHAT, chat_body(**more))
    streamed = [e for c in chunks for ch in c["choices"] if ch["logprobs"] for e in ch["logprobs"]["content"]]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]


LONG_DIVISION = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 999_983}}}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, None),
        ({"tools": [function("bad name!")]}, "tools.0.function.name"),
        ({"tools": [function("x" * 65)]}, "tools.0.function.name"),
        ({"tools": [function("f"), function("f")]}, "tools.1.function.name"),
        ({"tools": [function(f"f{i}") for i in range(129)]}, "tools"),
        ({"tools": [function("f", {"type": "string"})]}, "tools.0.function.parameters"),
        ({"tools": [function("f", description="x" * (300 << 10))]}, "tools"),
        ({"tools": [function("f", LONG_DIVISION)], "tool_choice": "required"}, "tools"),
        ({"tools": [function("f", LONG_DIVISION)], "response_format": {"type": "json_object"}}, "tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tools": [function("f", {"not": {}}, strict=True)], "tool_choice": "required"}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"messages": [{"role": "tool", "content": "sunny"}]}, "messages.0"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]}, None),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
async def test_tools_that_make_no_sense_are_refused(client: httpx.AsyncClient, change: Any, param: str | None) -> None:
    error_of(await client.post(CHAT, json={**chat_body(), **change}), 400, param=param)


async def test_parameters_that_cannot_be_enforced_are_only_refused_where_they_must_be(
    client: httpx.AsyncClient,
) -> None:
    tools = [function("f", {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 3}}}})]
    await chat(client, tools=tools, max_tokens=4)
    (choice,) = (await chat(client, **{**FORCED, "tools": tools}))["choices"]
    json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])


async def test_a_model_whose_form_is_unknown_refuses_tools_but_not_their_absence() -> None:
    async with running(serve_config(tool_call_parser="none"), max_context=ROOM) as (_, client):
        error_of(await client.post(CHAT, json=chat_body(tools=TOOLS)), 400, param="tools")
        await chat(client, tools=TOOLS, tool_choice="none")


@asynccontextmanager
async def with_a_control_tag() -> AsyncIterator[httpx.AsyncClient]:
    """A server to whose model `<tool_call>` is a control token, as `[TOOL_CALLS]` is to Mistral's."""
    model = await served(max_context=ROOM)
    tag = tokenizer().convert_tokens_to_ids("<tool_call>")
    known = model.language
    controls = known.control_token_ids | {tag}
    model = replace(model, language=Language.of(known.tokenizer, known.vocab_size, known.eos_token_ids, controls))

    async def load() -> Served:
        return model

    app = create_app(serve_config(), load, Telemetry())
    async with app.router.lifespan_context(app), client_of(app) as client:
        await app.state.readiness._task
        yield client


async def test_a_tag_that_is_a_control_token_reaches_the_parser_but_no_user(monkeypatch: pytest.MonkeyPatch) -> None:
    async with with_a_control_tag() as client:
        (forced,) = (await chat(client, **FORCED))["choices"]
        check_calls(forced["message"]["tool_calls"])
        saying(monkeypatch, f'"So: " {CALL}')
        (called,) = (await chat(client, tools=TOOLS, max_tokens=200))["choices"]
        assert anonymous(called["message"]["tool_calls"]) == [{"name": "weather", "arguments": '{"city": "Rome"}'}]
        (plain,) = (await chat(client, max_tokens=200))["choices"]
        assert plain["message"]["content"].startswith('So: {"name"')


async def test_results_go_back_to_the_model(client: httpx.AsyncClient) -> None:
    (choice,) = (await chat(client, **FORCED))["choices"]
    call = choice["message"]["tool_calls"][0]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    messages = [{"role": "user", "content": "weather?"}, choice["message"], result]
    await chat(client, messages=messages, tools=TOOLS)


async def test_thoughts_are_told_apart_from_the_answer(
    thinker: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    saying(monkeypatch, f'"<think>\\nhm, well\\n</think>\\n\\nSo: " {CALL}')
    more = {"tools": TOOLS, "max_tokens": 200}
    (choice,) = (await chat(thinker, **more))["choices"]
    assert choice["message"]["reasoning_content"] == "hm, well"
    assert choice["message"]["content"] == "So:"
    assert choice["finish_reason"] == "tool_calls"
    chunks = await stream(thinker, CHAT, chat_body(**more))
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm, well"
    assert text_of(chunks) == "So:"


@pytest.mark.parametrize("verifier", ["off", "strict"])
async def test_stop_strings_act_on_words_alone(
    thinker: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, verifier: str
) -> None:
    saying(monkeypatch, f'"<think>\\nRome?</think>So: " {CALL} "\\n" {CALL} "in Rome now"')
    more = {"tools": TOOLS, "max_tokens": 300, "stop": ["Rome"], "verifier": verifier}
    answer = await chat(thinker, **more)
    (choice,) = answer["choices"]
    assert choice["message"]["reasoning_content"] == "Rome?"
    assert choice["message"]["content"].split() == ["So:", "in"]
    assert len(choice["message"]["tool_calls"]) == 2
    chunks = await stream(thinker, CHAT, chat_body(**more))
    assert text_of(chunks) == choice["message"]["content"]
    assert anonymous(calls_of(chunks)) == anonymous(choice["message"]["tool_calls"])


async def test_the_beginning_of_an_announced_call_is_not_shown_as_words(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    saying(monkeypatch, f'"So: " {CALL}')
    for most in range(4, 24, 3):
        (choice,) = (await chat(client, tools=TOOLS, max_tokens=most))["choices"]
        assert choice["finish_reason"] == "length"
        assert "So:".startswith(choice["message"]["content"].strip())
