"""/v1/responses: tools, reasoning and structured answers, against the real engine.

Where a model must say something particular, a grammar makes the tiny random one say it.
"""

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import httpx
import pydantic
import pytest
import pytest_asyncio
from openai.lib._tools import ResponsesPydanticFunctionTool  # what openai.pydantic_function_tool makes, for responses

from tests.server.listening import listening, sdk
from tests.server.openai_api.responses import PATH, anonymous, body, events_of, respond, saying, text_of, told
from tests.server.serving import MODEL, error_of, only_ascii, running

ROOM = 1024  # the tools are written out in the prompt
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "name": "weather", "description": "The weather.", "parameters": SCHEMA, "strict": True}]
TOOL = {"tools": TOOLS, "max_output_tokens": 200}
FORMAT = {"type": "json_schema", "name": "trip", "schema": SCHEMA, "strict": True}
CALL = '<tool_call> "{\\"name\\": \\"weather\\", \\"arguments\\": {\\"days\\": 5}}</tool_call>"'
LOGPROBS = {"include": ["message.output_text.logprobs"]}
MESSAGE = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
CALLED = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with running(max_context=ROOM) as (_, client):
        yield client


@pytest.mark.parametrize("verifier", ["off", "strict", "fly", "hybrid"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
async def test_a_forced_call_is_a_function_call_item(client: httpx.AsyncClient, choice: Any, verifier: str) -> None:
    more = {**TOOL, "tool_choice": choice, "verifier": verifier, "parallel_tool_calls": False, "temperature": 1.2}
    answer = await respond(client, seed=7, **more)
    (item,) = answer["output"]
    assert (item["type"], item["name"], item["status"]) == ("function_call", "weather", "completed")
    assert item["id"].startswith("fc_")
    assert item["call_id"].startswith("call_")
    arguments = json.loads(item["arguments"])
    assert arguments["city"] in ("Paris", "Rome")
    assert 1 <= arguments["days"] <= 99
    assert answer["status"] == "completed"
    assert answer["tool_choice"] == choice
    assert answer["tools"] == TOOLS
    events = await events_of(client, seed=7, **more)
    assert told(events) == ["created", "in_progress", *CALLED, "completed"]
    assert anonymous(events[-1]["response"]) == anonymous(answer)
    deltas = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert "".join(deltas) == item["arguments"]


async def test_a_call_cut_short_is_incomplete(client: httpx.AsyncClient) -> None:
    answer = await respond(client, **{**TOOL, "max_output_tokens": 40}, tool_choice="required")
    (item,) = answer["output"]
    assert item["status"] == answer["status"] == "incomplete"
    with pytest.raises(ValueError, match=r"line \d+ column \d+"):
        json.loads(item["arguments"])


async def test_words_and_calls_are_items_of_their_own(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    saying(monkeypatch, f'"I look. " {CALL} "\\n" {CALL}')
    answer = await respond(client, **TOOL)
    said, first, second = answer["output"]
    assert said["content"][0]["text"] == "I look."
    assert first["arguments"] == second["arguments"] == '{"days": 5}'
    assert first["call_id"] != second["call_id"]
    events = await events_of(client, **TOOL)
    assert told(events) == ["created", "in_progress", *MESSAGE, "output_item.done", *CALLED, *CALLED, "completed"]
    assert anonymous(events[-1]["response"]) == anonymous(answer)
    alone = await respond(client, **TOOL, parallel_tool_calls=False)
    assert [item["type"] for item in alone["output"]] == ["message", "function_call"]


async def test_a_conversation_with_a_tool_goes_on(client: httpx.AsyncClient) -> None:
    asked = {"role": "user", "content": "weather in Rome?"}
    called = await respond(client, [asked], **TOOL, tool_choice="required", parallel_tool_calls=False)
    output = {"type": "function_call_output", "call_id": called["output"][0]["call_id"], "output": "sunny"}
    answer = await respond(client, [asked, *called["output"], output], **TOOL, logit_bias=only_ascii())
    assert text_of(answer)
    assert answer["usage"]["input_tokens"] > called["usage"]["input_tokens"]


async def test_tools_are_not_shown_where_none_may_be_called(client: httpx.AsyncClient) -> None:
    plain = (await respond(client))["usage"]["input_tokens"]
    assert (await respond(client, tools=TOOLS, tool_choice="none"))["usage"]["input_tokens"] == plain
    assert (await respond(client, tools=TOOLS))["usage"]["input_tokens"] > plain


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tools": [{"type": "function", "function": {"name": "x"}}]}, "tools.0.name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name"),
        ({"tools": [{"type": "function", "name": "a", "parameters": {"type": "string"}}]}, "tools.0.parameters"),
        ({"tools": TOOLS * 2}, "tools.1.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "text": {"format": FORMAT}}, "tool_choice"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format.schema"),
        ({"text": {"format": {**FORMAT, "schema": {"type": "nothing"}}}}, "text.format.schema"),
        ({"text": {"format": FORMAT}, "guided_regex": "a"}, "guided_regex"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
async def test_a_wrong_value_is_a_400_with_its_parameter(
    client: httpx.AsyncClient, change: dict[str, Any], param: str
) -> None:
    error_of(await client.post(PATH, json={**body(), **change}), 400, param=param)


async def test_thoughts_are_a_reasoning_item(thinker: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    saying(monkeypatch, '"<think>\\nhm, hm\\n</think>\\n\\nyes it is"')
    answer = await respond(thinker, max_output_tokens=60, **LOGPROBS)
    thought, said = answer["output"]
    assert thought["id"].startswith("rs_")
    assert thought["summary"] == []
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm, hm"}]
    assert said["content"][0]["text"] == "yes it is"
    spelled = "".join(entry["token"] for entry in said["content"][0]["logprobs"])
    assert spelled.strip() == "yes it is"
    details = answer["usage"]["output_tokens_details"]
    assert details["reasoning_tokens"] + len(said["content"][0]["logprobs"]) <= answer["usage"]["output_tokens"]
    assert details["reasoning_tokens"] > 10
    events = await events_of(thinker, max_output_tokens=60, **LOGPROBS)
    thinking = [kind.replace("output_text", "reasoning_text") for kind in [*MESSAGE, "output_item.done"]]
    assert told(events) == ["created", "in_progress", *thinking, *MESSAGE, "output_item.done", "completed"]
    assert anonymous(events[-1]["response"]) == anonymous(answer)


async def test_thoughts_cut_short_are_incomplete(thinker: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    saying(monkeypatch, '"<think>\\nhm, hm\\n</think>\\n\\nyes it is"')
    answer = await respond(thinker, max_output_tokens=12)
    (thought,) = answer["output"]
    assert thought["type"] == "reasoning"
    assert thought["status"] == answer["status"] == "incomplete"
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == 12


@pytest.mark.parametrize("verifier", ["off", "strict", "fly", "hybrid"])
async def test_an_answer_obeys_its_schema(client: httpx.AsyncClient, verifier: str) -> None:
    more = {"text": {"format": FORMAT}, "verifier": verifier, "temperature": 1.2, "max_output_tokens": 200, "seed": 3}
    answer = await respond(client, **more)
    value = json.loads(text_of(answer))
    assert set(value) == {"city", "days"}
    assert answer["text"]["format"] == FORMAT
    events = await events_of(client, **more)
    assert anonymous(events[-1]["response"]) == anonymous(answer)


async def test_other_constraints_work_as_in_chat(client: httpx.AsyncClient) -> None:
    assert text_of(await respond(client, guided_choice=["red", "blue"])) in ("red", "blue")
    assert text_of(await respond(client, structured_outputs={"regex": "[ab]{3}"})).strip("ab") == ""
    assert isinstance(json.loads(text_of(await respond(client, **OBJECT))), dict)


OBJECT = {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 300, "seed": 3, "temperature": 1}


class Trip(pydantic.BaseModel):
    """Plan a trip."""

    city: Literal["Paris", "Rome"]
    days: Literal[1, 2, 3]


async def test_the_sdk_parses_structured_answers_and_calls() -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": "a trip", "temperature": 1, "max_output_tokens": 200}
    tool = ResponsesPydanticFunctionTool(
        {"type": "function", "name": "Trip", "parameters": Trip.model_json_schema(), "strict": True}, Trip
    )
    async with listening(max_context=ROOM) as (_, url), sdk(url) as client:
        parsed = await client.responses.parse(**asked, text_format=Trip)
        assert isinstance(parsed.output_parsed, Trip)
        async with client.responses.stream(**asked, text_format=Trip) as stream:
            assert isinstance((await stream.get_final_response()).output_parsed, Trip)
        forced: dict[str, Any] = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
        called = await client.responses.parse(**asked, **forced)
        (call,) = called.output
        assert call.type == "function_call"
        assert isinstance(call.parsed_arguments, Trip)
        async with client.responses.stream(**asked, **forced) as stream:
            (call,) = (await stream.get_final_response()).output
        assert call.type == "function_call"
        assert isinstance(call.parsed_arguments, Trip)


async def test_a_response_says_whether_it_may_hold_several_calls(client: httpx.AsyncClient) -> None:
    named = {"type": "function", "name": "weather"}
    for more, several in (
        ({}, True),
        ({"parallel_tool_calls": False}, False),
        ({"tool_choice": "required"}, False),
        ({"tool_choice": "required", "parallel_tool_calls": True}, True),
        ({"tool_choice": named, "parallel_tool_calls": True}, False),
    ):
        answer = await respond(client, **{**TOOL, "max_output_tokens": 4}, **more)
        assert answer["parallel_tool_calls"] is several


async def test_encrypted_thoughts_may_be_asked_for(client: httpx.AsyncClient) -> None:
    answer = await respond(client, include=["reasoning.encrypted_content"], logit_bias=only_ascii())
    assert answer["output"][0]["content"][0]["logprobs"] == []
