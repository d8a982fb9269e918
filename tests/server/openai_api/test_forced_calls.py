"""Tool calls that a request demands, in /v1/chat/completions, against the real engine and OpenAI's own SDK."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel, Field

from tests.server.listening import listening, sdk
from tests.server.openai_api.calls import (
    CHAT,
    FORCED,
    NAMED,
    ROOM,
    TOOLS,
    anonymous,
    calls_of,
    check_calls,
    function,
)
from tests.server.serving import (
    MODEL,
    chat,
    chat_body,
    ok,
    only_ascii,
    running,
    stream,
    text_of,
)


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with running(max_context=ROOM) as (_, client):
        yield client


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


async def test_functions_without_parameters_are_called_without_arguments(client: httpx.AsyncClient) -> None:
    for parameters in (None, {}, {"type": "object", "properties": {}}):
        (choice,) = (await chat(client, **{**FORCED, "tools": [function("now", parameters)]}))["choices"]
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {}


async def test_a_forced_call_may_be_thought_about_first(thinker: httpx.AsyncClient) -> None:
    more = {**FORCED, "temperature": 1.2, "logit_bias": only_ascii(), "max_tokens": 400}
    for seed in range(3):
        (choice,) = (await chat(thinker, **more, seed=seed))["choices"]
        if choice["finish_reason"] == "tool_calls":
            check_calls(choice["message"]["tool_calls"])


@pytest.mark.parametrize("verifier", ["off", "strict", "fly"])
async def test_stop_strings_do_not_touch_a_forced_call(client: httpx.AsyncClient, verifier: str) -> None:
    more = {**FORCED, "verifier": verifier, "seed": 4, "temperature": 1.0}
    plain, stopped = [(await chat(client, **more, stop=stop))["choices"][0] for stop in (None, ["\n", "{", "e"])]
    assert stopped["finish_reason"] == "tool_calls"
    assert stopped["message"]["content"] is None
    check_calls(stopped["message"]["tool_calls"])
    assert anonymous(stopped["message"]["tool_calls"]) == anonymous(plain["message"]["tool_calls"])


async def test_no_beginning_of_a_forced_call_is_shown_as_words(client: httpx.AsyncClient) -> None:
    for most in (1, 2, 5, 9, 14, 20, 27, 36):
        more = {**FORCED, "max_tokens": most, "tools": TOOLS[:1]}
        (choice,) = (await chat(client, **more))["choices"]
        assert choice["finish_reason"] == "length"
        assert not choice["message"]["content"]
        chunks = await stream(client, CHAT, chat_body(**more))
        assert text_of(chunks) == ""
        assert anonymous(calls_of(chunks)) == anonymous(choice["message"].get("tool_calls") or [])
        response = {"tools": [{"type": "function", "name": "weather", "parameters": None}], "tool_choice": "required"}
        body = {"model": MODEL, "input": "x", "max_output_tokens": most, **response}
        output = ok(await client.post("/v1/responses", json=body))["output"]
        assert not any(part["text"] for item in output for part in item.get("content") or [])


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
