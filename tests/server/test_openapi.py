"""The OpenAPI document tells the truth: answers have the declared shapes, and the declared limits are the real ones."""

import json
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.server.serving import MODEL, chat_body, only_ascii, running, serve_config

PROMPT = {"model": MODEL, "prompt": "once upon a time", "max_tokens": 6, "logit_bias": only_ascii()}
LOGPROBS = {"logprobs": True, "top_logprobs": 2}
RESPONSE = {"model": MODEL, "input": "once upon a time", "max_output_tokens": 6, "logit_bias": only_ascii()}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


async def document_of(client: httpx.AsyncClient) -> dict[str, Any]:
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    return document


def validator(document: dict[str, Any], path: str, method: str, status: int, kind: str) -> Draft202012Validator:
    schema = document["paths"][path][method]["responses"][str(status)]["content"][kind]["schema"]
    if kind == "text/event-stream":
        schema = schema["properties"]["data"]["contentSchema"]
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


ENTRIES: dict[str, list[Any]] = {
    "stop": ["x"],
    "messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
}


def over_the_limit(name: str, schema: dict[str, Any]) -> Any:
    """A value one beyond the declared limit."""
    for branch in [schema, *schema.get("anyOf", [])]:
        if "maximum" in branch:
            return branch["maximum"] + 1
        if "maxItems" in branch:
            return ENTRIES.get(name, [1]) * (branch["maxItems"] + 1)
        if "maxProperties" in branch:
            return {str(i): ("x" if name == "metadata" else 1) for i in range(branch["maxProperties"] + 1)}
    raise AssertionError(f"{name} declares no limit: {schema}")


@pytest.mark.parametrize(
    "name",
    ["n", "stop", "messages", "metadata", "logit_bias", "stop_token_ids", "num_draft_tokens", "tools", "top_logprobs"],
)
async def test_declared_limits_are_the_real_ones(name: str) -> None:
    async with running() as (_, client):
        operation = (await document_of(client))["paths"]["/v1/chat/completions"]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]["properties"][name]
        too_much = over_the_limit(name, schema)
        answer = await client.post("/v1/chat/completions", json=chat_body(**{"logprobs": True, name: too_much}))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith(name)


async def test_declared_names_are_the_ones_that_may_be_used() -> None:
    config = serve_config(aliases=("alias",), allowed_verifiers=("strict", "fly"), allowed_drafters=("prompt_lookup",))
    async with running(config) as (_, client):
        operation = (await document_of(client))["paths"]["/v1/chat/completions"]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        check = Draft202012Validator(schema)
        answered = {True: 0, False: 0}
        for change in (
            {"model": "alias"},
            {"model": "nobody"},
            {"drafter": "auto"},
            {"drafter": "prompt_lookup"},
            {"drafter": "multilevel"},
            {"verifier": "fly"},
            {"verifier": "csd"},
            {"verifier": {"type": "fly", "window": 2}},
            {"verifier": {"type": "fly", "window": 65}},
            {"verifier": {"type": "fly", "ratio": 0.5}},
            {"verifier": {"window": 2}},
            {"verifier": None, "drafter": None},
        ):
            body = chat_body(**change)
            good = (await client.post("/v1/chat/completions", json=body)).status_code == 200
            assert good == check.is_valid(body), change
            answered[good] += 1
        assert answered == {True: 6, False: 6}


async def test_every_other_get_route_has_the_declared_shape() -> None:
    async with running() as (_, client):
        document = await document_of(client)
        for path in ("/health", "/version", "/tokenizer_info", "/info", "/v1/models"):
            check = validator(document, path, "get", 200, "application/json")
            check.validate((await client.get(path)).json())
        metrics = document["paths"]["/metrics"]["get"]["responses"]
        assert list(metrics["200"]["content"]) == ["text/plain"]
        assert list(metrics["401"]["content"]) == ["application/json"]


async def test_the_document_says_that_a_key_is_needed_and_where_not() -> None:
    async with running() as (_, client):
        document = await document_of(client)
        assert document["security"] == [{"api_key": []}]
        assert document["components"]["securitySchemes"]["api_key"] == {"type": "http", "scheme": "bearer"}
        assert document["paths"]["/health"]["get"]["security"] == []
    async with running(serve_config(api_keys=())) as (_, client):
        assert "security" not in await document_of(client)
