"""Answers of /v1/chat/completions that call tools: functions to offer, and calls to check.

Where a model must say something particular, a grammar makes the tiny random one say it.
"""

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

import server.openai_api.chat
from server.generation_plan import GenerationPlan

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
