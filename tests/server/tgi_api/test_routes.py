"""TGI's routes beyond what its client library shows: shapes, errors on the wire, info, chat_tokenize."""

import json
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.server.serving import CONTEXT, KEY, MODEL, chat, client_of, ok, running, tokenizer

PROMPT = "once upon a time"


def asked(**parameters: Any) -> dict[str, Any]:
    return {"inputs": PROMPT, "parameters": {"max_new_tokens": 12, **parameters}}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "[DONE]" not in response.text
    return [json.loads(line.removeprefix("data:")) for line in response.text.splitlines() if line.startswith("data:")]


async def test_the_routes_differ_in_who_streams_and_in_the_list(client: httpx.AsyncClient) -> None:
    whole = ok(await client.post("/generate", json=asked()))
    assert set(whole) == {"generated_text"}
    assert (await client.post("/", json=asked())).json() == [whole]
    for path, stream in (("/generate_stream", False), ("/generate", True), ("/", True)):
        streamed = events(await client.post(path, json={**asked(), "stream": stream}))
        assert streamed[-1]["generated_text"] == whole["generated_text"]
        assert streamed[-1]["details"] is None


@pytest.mark.parametrize("verifier", ["off", "strict", {"type": "fly", "window": 2}, {"type": "lossy"}])
async def test_our_own_fields_stand_among_the_parameters(client: httpx.AsyncClient, verifier: Any) -> None:
    options = {"verifier": verifier, "num_draft_tokens": 5, "details": True, "return_provenance": True, "min_p": 0.01}
    if verifier == "off":
        del options["num_draft_tokens"]
    whole = ok(await client.post("/generate", json=asked(**options)))["details"]
    name = verifier if isinstance(verifier, str) else verifier["type"]
    assert whole["speculation"]["verifier"] == name
    drafted = [token for token in whole["tokens"] if token["provenance"] in ("native", "deferred", "lenient")]
    assert len(drafted) == whole["speculation"]["accepted_tokens"]
    last = events(await client.post("/generate_stream", json=asked(**options)))[-1]
    assert last["details"]["speculation"]["accepted_tokens"] == whole["speculation"]["accepted_tokens"]


async def test_provenance_that_no_listed_token_could_show_is_refused(client: httpx.AsyncClient) -> None:
    refused = await client.post("/generate", json=asked(return_provenance=True))
    assert refused.status_code == 400
    assert refused.json()["error_type"] == "validation"
    assert events(await client.post("/generate_stream", json=asked(return_provenance=True)))[0]["token"]["provenance"]


async def test_the_prompts_tokens_need_details_to_stand_in(client: httpx.AsyncClient) -> None:
    refused = await client.post("/generate", json=asked(decoder_input_details=True))
    assert (refused.status_code, refused.json()["error_type"]) == (400, "validation")


@pytest.mark.parametrize(("stop", "reason"), [("zz", "eos_token"), ("ell", "stop_sequence"), ("lo", "stop_sequence")])
async def test_an_answer_that_its_grammar_ends_is_not_said_to_end_at_a_stop_string(
    client: httpx.AsyncClient, stop: str, reason: str
) -> None:
    body = asked(details=True, stop=[stop], grammar={"type": "regex", "value": "hello"})
    assert ok(await client.post("/generate", json=body))["details"]["finish_reason"] == reason
    assert events(await client.post("/generate_stream", json=body))[-1]["details"]["finish_reason"] == reason


async def test_a_misspelt_field_of_ours_gets_a_hint(client: httpx.AsyncClient) -> None:
    answer = ok(await client.post("/generate", json=asked(details=True, drafters="model", model="x", stream=True)))
    assert "did you mean 'drafter'" in answer["details"]["speculation"]["warnings"][0]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"inputs": 3}',
        b'{"inputs": ["a"]}',
        b'{"inputs": "a", "parameters": 3}',
        b'{"inputs": "a", "parameters": {"seed": -1}}',
        b'{"inputs": "a", "parameters": {"seed": 18446744073709551616}}',
        b'{"inputs": "a", "parameters": {"drafter": "nobody"}}',
        b'{"inputs": "a", "parameters": {"verifier": {"type": "fly", "window": -1}}}',
        b'{"inputs": "a", "parameters": {"min_tokens": 200}}',
        b'{"inputs": "a", "parameters": {"logit_bias": {"x": 1}}}',
        b'{"inputs": "a", "parameters": {"guided_choice": []}}',
    ],
)
@pytest.mark.parametrize("path", ["/", "/generate", "/generate_stream"])
async def test_mistakes_have_tgis_shape(client: httpx.AsyncClient, path: str, body: bytes) -> None:
    answer = await client.post(path, content=body)
    assert answer.status_code == 400, answer.text
    assert set(answer.json()) == {"error", "error_type"}
    assert answer.json()["error_type"] == "validation"


async def test_null_parameters_are_none(client: httpx.AsyncClient) -> None:
    assert ok(await client.post("/generate", json={"inputs": PROMPT, "parameters": None}))["generated_text"]


async def test_a_key_is_needed_here_too() -> None:
    async with running() as (app, _), client_of(app) as client:
        for path in ("/", "/generate", "/generate_stream", "/chat_tokenize"):
            assert (await client.post(path, json=asked(), headers={"Authorization": "Bearer x"})).status_code == 401
        headers = {"Authorization": f"Bearer {KEY}"}
        assert (await client.post("/generate", json=asked(), headers=headers)).status_code == 200


async def test_info_tells_the_limits(client: httpx.AsyncClient) -> None:
    info = ok(await client.get("/info"))
    assert info["model_id"] == MODEL
    assert (info["max_total_tokens"], info["max_input_tokens"]) == (CONTEXT, CONTEXT - 1)
    assert info["max_concurrent_requests"] == 8 + 16
    assert (info["max_best_of"], info["max_stop_sequences"]) == (16, 16)


async def test_chat_tokenize_shows_what_the_model_reads(client: httpx.AsyncClient) -> None:
    content = "naïve 🎉 <|im_end|> x"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": content}]
    answer = ok(await client.post("/chat_tokenize", json={"messages": messages}))
    text, tokens = answer["templated_text"], answer["tokenize_response"]
    assert text == f"<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    assert all(text[token["start"] : token["stop"]] == token["text"] for token in tokens)
    assert tokens[-1]["stop"] == len(text)
    ids = [token["id"] for token in tokens]
    assert ids.count(tokenizer().convert_tokens_to_ids("<|im_end|>")) == 2  # the user's own is plain text
    assert len(ids) == (await chat(client, content, messages=messages))["usage"]["prompt_tokens"]
    wrong = await client.post("/chat_tokenize", json={"messages": [{"role": "nobody", "content": ""}]})
    assert (wrong.status_code, wrong.json()["error_type"]) == (400, "validation")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "/generate", asked()),
        ("post", "/generate", asked(details=True, top_n_tokens=2, decoder_input_details=True)),
        ("post", "/generate", asked(details=True, best_of=3, do_sample=True)),
        ("post", "/generate", {**asked(details=True), "stream": True}),
        ("post", "/generate_stream", asked(do_sample=True)),
        ("post", "/", asked()),
        ("post", "/generate", asked(temperature=-1)),
        ("post", "/chat_tokenize", {"messages": [{"role": "user", "content": "hi"}]}),
        ("get", "/info", None),
    ],
)
async def test_answers_have_the_declared_shape(
    client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None
) -> None:
    document = (await client.get("/openapi.json")).json()
    answer = await client.request(method, path, json=body)
    kind = answer.headers["content-type"].partition(";")[0]
    declared = document["paths"][path][method]["responses"][str(answer.status_code)]["content"][kind]["schema"]
    if kind == "text/event-stream":
        declared = declared["properties"]["data"]["contentSchema"]
    check = Draft202012Validator({**declared, "components": document["components"]})
    values = events(answer) if kind == "text/event-stream" else [answer.json()]
    assert values
    for value in values:
        check.validate(value)
