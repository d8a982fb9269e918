"""Answers held to a schema, a pattern, choices or a grammar, asked for as OpenAI's SDK and vLLM's clients do."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
import pytest_asyncio
from llguidance import LLParserLimits
from pydantic import BaseModel, Field

from server.text import constraints
from tests.server.serving import (
    KEY,
    MODEL,
    chat,
    chat_body,
    complete,
    completion_body,
    error_of,
    ok,
    running,
    stream,
    text_of,
)

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8, "pattern": "^[a-z ]*$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
VERIFIERS: list[Any] = [
    "off",
    "strict",
    {"type": "fly", "entropy_threshold": 0.0, "window": 1},
    {"type": "hybrid", "entropy_threshold": 0.0, "window": 1},
    {"type": "lossy", "threshold": 1e-6},
]


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)
    kind: Literal["cat", "dog"]


@pytest_asyncio.fixture
async def sdk() -> AsyncIterator[openai.AsyncOpenAI]:
    async with running() as (app, _):
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
        async with openai.AsyncOpenAI(base_url="http://test/v1", api_key=KEY, max_retries=0, http_client=http) as sdk:
            yield sdk


MESSAGES: Any = [{"role": "user", "content": "once upon a time"}]


async def test_the_sdk_parses_answers_into_a_model_of_its_own(sdk: openai.AsyncOpenAI) -> None:
    for seed in range(3):
        answer = await sdk.chat.completions.parse(
            model=MODEL, messages=MESSAGES, response_format=Person, max_tokens=120, temperature=1.5, seed=seed
        )
        [choice] = answer.choices
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, Person)


async def test_the_sdk_parses_streams(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Person, max_tokens=120, seed=1
    ) as events:
        async for _ in events:
            pass
        final = await events.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Person)


async def test_an_answer_that_is_cut_is_told_from_a_complete_one(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        await sdk.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Person, max_tokens=3)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=str)
async def test_answers_are_valid_and_nothing_is_loosened(client: httpx.AsyncClient, verifier: Any) -> None:
    more: dict[str, Any] = {} if verifier == "off" else {"num_draft_tokens": 5}
    answer = await chat(
        client, response_format=FORMAT, verifier=verifier, n=5, temperature=1.2, seed=7, max_tokens=120, **more
    )
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
    assert not any(answer["speculation"]["loosened_tokens"].values())


@pytest.mark.parametrize("drafter", ["model", "prompt_lookup", "multilevel"])
@pytest.mark.parametrize("temperature", [0, 1.3])
async def test_strict_answers_as_off_does(client: httpx.AsyncClient, drafter: str, temperature: float) -> None:
    asked: dict[str, Any] = {"response_format": FORMAT, "temperature": temperature, "seed": 3, "max_tokens": 80}
    off = await chat(client, verifier="off", **asked)
    strict = await chat(client, verifier="strict", drafter=drafter, **asked)
    assert strict["choices"][0]["message"] == off["choices"][0]["message"]


async def test_a_stream_is_the_whole_answer(client: httpx.AsyncClient) -> None:
    asked: dict[str, Any] = {"response_format": FORMAT, "seed": 5, "temperature": 1, "max_tokens": 80}
    whole = await chat(client, **asked)
    chunks = await stream(client, "/v1/chat/completions", chat_body(**asked))
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(text_of(chunks)), PERSON)


async def test_json_object_answers_with_an_object(client: httpx.AsyncClient) -> None:
    answer = await chat(client, response_format={"type": "json_object"}, temperature=1, seed=2, max_tokens=120)
    if answer["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(answer["choices"][0]["message"]["content"]), dict)
    assert answer["choices"][0]["message"]["content"][0] == "{"
    held = {"type": "json_object", "schema": PERSON}
    answer = await chat(client, response_format=held, temperature=1, seed=2, max_tokens=120)
    jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), PERSON)


FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"guided_regex": r"[a-c]{2,4}-\d{2}"}, r"[a-c]{2,4}-\d{2}"),
    ({"structured_outputs": {"regex": "(yes|no)!?"}}, "(yes|no)!?"),
    ({"guided_choice": ["naïve café", "🎉🎉", "plain"]}, "naïve café|🎉🎉|plain"),
    ({"structured_outputs": {"choice": ["one", "two"], "regex": None}}, "one|two"),
    ({"guided_grammar": 'root ::= "<" [a-f]{3} ">"'}, "<[a-f]{3}>"),
    ({"structured_outputs": {"grammar": 'start: "x" /[0-9]{2}/ "y"'}}, "x[0-9]{2}y"),
    ({"guided_json": json.dumps({"type": "integer", "minimum": 10, "maximum": 99})}, "[0-9]{2}"),
    ({"structured_outputs": {"json": {"enum": ["a", 5]}}}, '"a"|5'),
]


@pytest.mark.parametrize(("fields", "pattern"), FIELDS, ids=[str(fields) for fields, _ in FIELDS])
async def test_vllms_fields_work_on_both_endpoints(
    client: httpx.AsyncClient, fields: dict[str, Any], pattern: str
) -> None:
    more = {"temperature": 1.2, "seed": 11, "max_tokens": 60, **fields}
    for text in (
        (await chat(client, **more))["choices"][0]["message"]["content"],
        (await complete(client, **more))["choices"][0]["text"],
    ):
        assert re.fullmatch(pattern, text), text


async def test_completions_take_a_response_format_and_many_prompts(client: httpx.AsyncClient) -> None:
    answer = await complete(
        client, ["the sea", "a king"], response_format=FORMAT, n=2, temperature=1.2, seed=1, max_tokens=120
    )
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(texts) == 4
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)


async def test_penalties_bias_and_filters_do_not_break_a_constraint(client: httpx.AsyncClient) -> None:
    fighting = {
        "presence_penalty": 2.0,
        "repetition_penalty": 1.8,
        "top_k": 3,
        "top_p": 0.4,
        "min_p": 0.2,
        "min_tokens": 60,
        "ignore_eos": True,
        "logit_bias": {str(token): -100 for token in range(0, 420, 2)},
    }
    answer = await chat(client, response_format=FORMAT, temperature=1, seed=9, max_tokens=120, **fighting)
    jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), PERSON)
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_a_stop_string_still_cuts(client: httpx.AsyncClient) -> None:
    answer = await chat(client, response_format=FORMAT, stop='"age"', max_tokens=120)
    content = answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert '"name"' in content
    assert '"age"' not in content


async def test_logprobs_are_of_the_unconstrained_model(client: httpx.AsyncClient) -> None:
    """A token that the constraint forced may well be one that the model finds unlikely."""
    answer = await chat(client, guided_choice=["zzzz"], logprobs=True, top_logprobs=3, max_tokens=20)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "zzzz"
    first = entries[0]
    assert first["logprob"] < -1
    assert first["top_logprobs"][0]["logprob"] > first["logprob"]


async def test_a_constraint_that_grows_too_complex_is_no_server_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every further letter can be read in more ways, until llguidance gives up: SDKs would retry a 5xx in vain."""
    monkeypatch.setattr(constraints, "_PARSER_LIMITS", LLParserLimits(step_max_items=60, verbose_errors=False))
    fields = {"guided_grammar": 'start: some\nsome: some some | "a" | "b"', "ignore_eos": True, "max_tokens": 200}
    async with running() as (_, client):
        response = await client.post("/v1/chat/completions", json=chat_body(**fields))
        assert "Too many items" in error_of(response, 400, "guided_grammar", "constraint_failed")
        assert (await chat(client))["choices"]  # the engine goes on


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def held_to(schema: Any, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}}


NAMED: dict[str, Any] = {"name": "x", "schema": {}}
SCHEMA = "response_format.json_schema.schema"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": "json_object"}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format.json_schema.name"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, SCHEMA),
    (
        {"response_format": {"type": "json_object", "json_schema": {"name": "x", "schema": {}}}},
        "response_format.json_schema",
    ),
    (
        {"response_format": {"type": "json_schema", "schema": {}, "json_schema": {"name": "x", "schema": {}}}},
        "response_format.schema",
    ),
    (held_to([]), SCHEMA),
    (held_to({"type": "frob"}), SCHEMA),
    (held_to({"type": "array", "uniqueItems": True}, strict=True), SCHEMA),
    (held_to({"pattern": "("}), SCHEMA),
    (held_to(nested(70)), SCHEMA),
    (held_to({"enum": ["x" * 140_000]}), SCHEMA),
    (held_to({}, strict="yes"), "response_format.json_schema.strict"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "[]"}, "guided_json"),
    ({"guided_json": 5}, "guided_json"),
    ({"guided_json": {"not": {}}}, "guided_json"),
    ({"guided_regex": "("}, "guided_regex"),
    ({"guided_regex": "x" * 140_000}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["a", ""]}, "guided_choice"),
    ({"guided_choice": ["a"] * 2000}, "guided_choice"),
    ({"guided_choice": ["a", 1]}, "guided_choice.1"),
    ({"guided_grammar": "start: foo"}, "guided_grammar"),
    ({"guided_grammar": "a ::= ("}, "guided_grammar"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"json": {"type": "frob"}}}, "structured_outputs.json"),
    ({"structured_outputs": {"whitespace_pattern": " ", "regex": "a"}}, "structured_outputs.whitespace_pattern"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs.json_object"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[str(fields)[:80] for fields, _ in WRONG])
async def test_what_makes_no_sense_is_a_400_that_names_the_field(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    message = error_of(await client.post("/v1/chat/completions", json=chat_body(**fields)), 400, param)
    assert "\N{REPLACEMENT CHARACTER}" not in message
    error_of(await client.post("/v1/completions", json=completion_body(**fields)), 400, param)


@pytest.mark.parametrize("strict", [False, None])
async def test_what_is_not_enforced_is_told_unless_all_must_be(client: httpx.AsyncClient, strict: bool | None) -> None:
    fields = held_to({"type": "array", "uniqueItems": True, "items": {"type": "boolean"}}, strict=strict)
    answer = ok(await client.post("/v1/chat/completions", json=chat_body(**fields)))
    [warning] = [text for text in answer["speculation"]["warnings"] if "not enforced" in text]
    assert SCHEMA in warning
    assert "uniqueItems" in warning


async def test_an_error_says_which_keyword_is_unsupported(client: httpx.AsyncClient) -> None:
    fields = held_to({"type": "array", "uniqueItems": True}, strict=True)
    message = error_of(
        await client.post("/v1/chat/completions", json=chat_body(**fields)), 400, SCHEMA, "invalid_value"
    )
    assert "uniqueItems" in message


async def test_what_asks_for_nothing_changes_nothing(client: httpx.AsyncClient) -> None:
    plain = await chat(client)
    nothing = {
        "response_format": {"type": "text"},
        "structured_outputs": {"json_object": False, "whitespace_pattern": None},
        "guided_json": None,
        "guided_decoding_backend": "auto",
    }
    assert (await chat(client, **nothing))["choices"] == plain["choices"]
