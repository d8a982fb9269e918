"""Tools and reasoning in /v1/chat/completions, against the real engine and OpenAI's own SDK.

Where a model must say something particular, a grammar makes the tiny random one say it.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel, Field

import server.openai_api.chat
from server.app import create_app
from server.generation import GenerationPlan
from server.serving_config import Served
from server.telemetry import Telemetry
from tests.server.listening import listening, sdk
from tests.server.serving import (
    MODEL,
    chat,
    chat_body,
    client_of,
    error_of,
    only_ascii,
    running,
    serve_config,
    served,
    stream,
    text_of,
    tokenizer,
)

CHAT = "/v1/chat/completions"
ROOM = 1024  # the tools are written out in the prompt
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["city"],
}
MAIL = {"type": "object", "properties": {"to": {"type": "string", "maxLength": 8}}, "required": ["to"]}


def function(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


TOOLS = [function("weather", WEATHER, description="The weather."), function("mail", MAIL, strict=True)]
SCHEMAS = {"weather": WEATHER, "mail": MAIL}
NAMED = {"type": "function", "function": {"name": "mail"}}
FORCED = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 200}
# `<tool_call>` is a token of its own in the test's vocabulary; the closing tag is text.
CALL = '<tool_call> "{\\"name\\": \\"weather\\", \\"arguments\\": {\\"city\\": \\"Rome\\"}}</tool_call>"'


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with running(max_context=ROOM) as (_, client):
        yield client


@pytest_asyncio.fixture
async def thinker() -> AsyncIterator[httpx.AsyncClient]:
    """A server whose model thinks aloud."""
    async with running(serve_config(reasoning_parser="think"), max_context=ROOM) as (_, client):
        yield client


def saying(monkeypatch: pytest.MonkeyPatch, grammar: str) -> None:
    """From now on answers are what the grammar says."""
    real = server.openai_api.chat.with_reading

    def scripted(plan: GenerationPlan, use: Any, model: Any) -> GenerationPlan:
        return replace(real(plan, use, model), constraint=model.constraints.lark(f"start: {grammar}"))

    monkeypatch.setattr(server.openai_api.chat, "with_reading", scripted)


def calls_of(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    """The calls that a stream's deltas add up to."""
    calls: list[dict[str, Any]] = []
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        for delta in choice["delta"].get("tool_calls") or []:
            if "id" in delta:
                assert delta["index"] == len(calls)
                calls.append({"id": delta["id"], "type": delta["type"], "function": dict(delta["function"])})
            else:
                assert set(delta) == {"index", "function"}
                calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    return calls


def anonymous(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [call["function"] for call in calls]


def check_calls(calls: list[dict[str, Any]]) -> None:
    assert len({call["id"] for call in calls}) == len(calls) > 0
    for call in calls:
        assert call["type"] == "function"
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])


@pytest.mark.parametrize("verifier", ["off", "strict", "fly", "hybrid", {"type": "lossy", "threshold": 0.01}])
async def test_a_forced_call_is_valid_and_never_loosened(client: httpx.AsyncClient, verifier: Any) -> None:
    for seed in range(5):
        answer = await chat(client, **FORCED, verifier=verifier, temperature=1.2, seed=seed)
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        assert len(choice["message"]["tool_calls"]) == 1
        check_calls(choice["message"]["tool_calls"])
        assert not any(answer["speculation"]["loosened_tokens"].values())


async def test_a_stream_of_calls_tells_the_same_as_the_whole_answer(client: httpx.AsyncClient) -> None:
    more = {**FORCED, "seed": 3, "temperature": 1.0, "n": 2, "verifier": "off"}
    whole = (await chat(client, **more))["choices"]
    chunks = await stream(client, CHAT, chat_body(**more))
    for index in range(2):
        assert anonymous(calls_of(chunks, index)) == anonymous(whole[index]["message"]["tool_calls"])
        check_calls(calls_of(chunks, index))
        assert text_of(chunks, index) == ""
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert reasons == ["tool_calls", "tool_calls"]
    pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == 0 and c["delta"].get("tool_calls")]
    assert len(pieces) > 3  # arguments arrive as they are written


async def test_a_named_function_is_the_one_that_is_called(client: httpx.AsyncClient) -> None:
    (choice,) = (await chat(client, **{**FORCED, "tool_choice": NAMED}))["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["mail"]
    assert choice["finish_reason"] == "stop"  # as OpenAI has it


async def test_several_calls_are_forced_only_if_asked_for(client: httpx.AsyncClient) -> None:
    more = {**FORCED, "parallel_tool_calls": True, "tools": TOOLS[:1]}
    (choice,) = (await chat(client, **more))["choices"]
    assert len(choice["message"]["tool_calls"]) > 2
    check_calls(choice["message"]["tool_calls"][:-1])  # the random model knows no end


async def test_a_forced_call_cut_short_ends_with_length(client: httpx.AsyncClient) -> None:
    (choice,) = (await chat(client, **{**FORCED, "max_tokens": 36}))["choices"]
    assert choice["finish_reason"] == "length"


async def test_functions_without_parameters_are_called_without_arguments(client: httpx.AsyncClient) -> None:
    for parameters in (None, {}, {"type": "object", "properties": {}}):
        (choice,) = (await chat(client, **{**FORCED, "tools": [function("now", parameters)]}))["choices"]
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {}


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
    model = replace(model, control_token_ids=model.control_token_ids | {tag})

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


async def test_a_forced_call_may_be_thought_about_first(thinker: httpx.AsyncClient) -> None:
    more = {**FORCED, "temperature": 1.2, "logit_bias": only_ascii(), "max_tokens": 400}
    for seed in range(3):
        (choice,) = (await chat(thinker, **more, seed=seed))["choices"]
        if choice["finish_reason"] == "tool_calls":
            check_calls(choice["message"]["tool_calls"])


class Mail(BaseModel):
    """Send a mail."""

    to: str = Field(max_length=8)


async def test_the_sdks_helpers_parse_a_streamed_call() -> None:
    async with listening(max_context=ROOM) as (_, url), sdk(url) as client:
        tool = openai.pydantic_function_tool(Mail)
        messages: Any = [{"role": "user", "content": "mail bob"}]
        async with client.chat.completions.stream(
            model=MODEL, messages=messages, tools=[tool], tool_choice="required", temperature=0, max_tokens=200
        ) as events:
            seen = [event.type async for event in events]
            final = await events.get_final_completion()
        assert "tool_calls.function.arguments.delta" in seen
        assert "tool_calls.function.arguments.done" in seen
        call = (final.choices[0].message.tool_calls or [])[0]
        assert isinstance(call.function.parsed_arguments, Mail)
        parsed = await client.chat.completions.parse(
            model=MODEL, messages=messages, tools=[tool], tool_choice="required", temperature=0, max_tokens=200
        )
        again = (parsed.choices[0].message.tool_calls or [])[0]
        assert again.function.parsed_arguments == call.function.parsed_arguments
