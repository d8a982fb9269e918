"""Asking /v1/responses, and holding what comes back against the types of OpenAI's SDK."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import httpx
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent

import server.openai_api.responses
from server.generation_plan import GenerationPlan
from tests.server.serving import MODEL, ok

PATH = "/v1/responses"
# Fields that the SDK's types do not have; `name`, of finished arguments, is in OpenAI's document.
OURS = {"speculation", "store", "provenance", "verification", "bytes", "name"}
EVENTS = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}


def body(given: Any = "once upon a time", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": given, "max_output_tokens": 12, "temperature": 0, **more}


async def respond(client: httpx.AsyncClient, given: Any = "once upon a time", **more: Any) -> dict[str, Any]:
    """A whole answer, which has OpenAI's shape."""
    answer = ok(await client.post(PATH, json=body(given, **more)))
    check(Response.model_validate(answer, strict=True))
    return answer


async def events_of(client: httpx.AsyncClient, given: Any = "once upon a time", **more: Any) -> list[dict[str, Any]]:
    """The events of a stream, numbered, named, and each of OpenAI's shape."""
    response = await client.post(PATH, json=body(given, stream=True, **more))
    assert response.status_code == 200, response.text
    events: list[dict[str, Any]] = []
    for block in response.text.split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        check(EVENTS[event["type"]].model_validate(event, strict=True))
        events.append(event)
    return events


def saying(monkeypatch: pytest.MonkeyPatch, grammar: str) -> None:
    """From now on answers are what the grammar says."""
    real = server.openai_api.responses.with_reading

    def scripted(plan: GenerationPlan, use: Any, model: Any) -> GenerationPlan:
        return replace(real(plan, use, model), constraint=model.constraints.lark(f"start: {grammar}"))

    monkeypatch.setattr(server.openai_api.responses, "with_reading", scripted)


def check(value: Any) -> None:
    """Nothing is in it that neither OpenAI nor we have a field for."""
    for model in _models(value):
        assert set(model.model_extra or ()) <= OURS, model


def _models(value: Any) -> Iterator[pydantic.BaseModel]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _models(item)
    elif isinstance(value, pydantic.BaseModel):
        yield value
        yield from _models([getattr(value, name) for name in type(value).model_fields])


def told(events: list[dict[str, Any]]) -> list[str]:
    """The types of the events, runs of deltas made one, without `response.`."""
    kinds = [event["type"].removeprefix("response.") for event in events]
    return [kind for index, kind in enumerate(kinds) if not (kind.endswith(".delta") and kinds[index - 1] == kind)]


def text_of(answer: dict[str, Any]) -> str:
    parts = [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def anonymous(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what differs each time it is given: ids, times, what the prefix cache held, measured speed."""
    output = [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in answer["output"]]
    usage = {**answer["usage"], "input_tokens_details": None}
    speculation = {**answer["speculation"], "estimated_speedup": None}
    return {**answer, "id": "", "created_at": 0, "completed_at": 0} | {
        "output": output,
        "usage": usage,
        "speculation": speculation,
    }
