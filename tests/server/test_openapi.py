"""The OpenAPI document tells the truth: answers have the declared shapes, and the declared limits are the real ones."""

import json
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.server.serving import MODEL, chat_body, only_ascii, running

PROMPT = {"model": MODEL, "prompt": "once upon a time", "max_tokens": 6, "logit_bias": only_ascii()}
LOGPROBS = {"logprobs": True, "top_logprobs": 2}
RESPONSE = {"model": MODEL, "input": "once upon a time", "max_output_tokens": 6, "logit_bias": only_ascii()}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


async def document_of(client: httpx.AsyncClient) -> dict[str, Any]:
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    return document


def validator(document: dict[str, Any], path: str, method: str, status: int, kind: str) -> Draft202012Validator:
    schema = document["paths"][path][method]["responses"][str(status)]["content"][kind]["schema"]
    return Draft202012Validator({**schema, "components": document["components"]})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat_body()),
        ("/v1/chat/completions", chat_body(verifier="lossy", n=2, **LOGPROBS)),
        ("/v1/chat/completions", chat_body(**STREAM)),
        ("/v1/chat/completions", chat_body(**LOGPROBS, **STREAM)),
        ("/v1/completions", PROMPT),
        ("/v1/completions", {**PROMPT, "logprobs": 2, "echo": False}),
        ("/v1/completions", {**PROMPT, "logprobs": 2, "echo": True, "best_of": 3}),
        ("/v1/completions", {**PROMPT, "logprobs": 2, "echo": True, "max_tokens": 0, **STREAM}),
        ("/v1/completions", {**PROMPT, "logprobs": 0, **STREAM}),
        ("/v1/chat/completions", chat_body(temperature=9)),
        ("/v1/chat/completions", {**chat_body(), "model": "nobody"}),
        ("/v1/completions", {**PROMPT, "prompt": []}),
        ("/v1/responses", RESPONSE),
        ("/v1/responses", {**RESPONSE, "include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        ("/v1/responses", {**RESPONSE, "stream": True}),
        ("/v1/responses", {**RESPONSE, "input": []}),
    ],
)
async def test_answers_have_the_declared_shape(path: str, body: dict[str, Any]) -> None:
    async with running() as (_, client):
        document = await document_of(client)
        answer = await client.post(path, json=body)
        streamed = bool(body.get("stream"))
        kind = "text/event-stream" if streamed else "application/json"
        check = validator(document, path, "post", answer.status_code, kind)
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")] if streamed else []
        values = [json.loads(line) for line in lines] if streamed else [answer.json()]
        assert values
        for value in values:
            check.validate(value)


async def test_the_model_list_has_the_declared_shape() -> None:
    async with running() as (_, client):
        document = await document_of(client)
        validator(document, "/v1/models", "get", 200, "application/json").validate(
            (await client.get("/v1/models")).json()
        )


def over_the_limit(name: str, schema: dict[str, Any]) -> Any:
    """A value one beyond the declared limit."""
    for branch in [schema, *schema.get("anyOf", [])]:
        if "maximum" in branch:
            return branch["maximum"] + 1
        if "maxItems" in branch:
            return {"stop": ["x"], "messages": [{"role": "user", "content": "x"}]}.get(name, [1]) * (
                branch["maxItems"] + 1
            )
        if "maxProperties" in branch:
            return {str(i): ("x" if name == "metadata" else 1) for i in range(branch["maxProperties"] + 1)}
    raise AssertionError(f"{name} declares no limit: {schema}")


@pytest.mark.parametrize(
    "name", ["n", "stop", "messages", "metadata", "logit_bias", "stop_token_ids", "num_draft_tokens", "top_logprobs"]
)
async def test_declared_limits_are_the_real_ones(name: str) -> None:
    async with running() as (_, client):
        operation = (await document_of(client))["paths"]["/v1/chat/completions"]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]["properties"][name]
        too_much = over_the_limit(name, schema)
        answer = await client.post("/v1/chat/completions", json=chat_body(**{"logprobs": True, name: too_much}))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith(name)
