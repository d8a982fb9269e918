"""`return_provenance` tells the same of a token in every dialect, streamed or not, and only if asked."""

from typing import Any

import httpx
import pytest

from tests.server.serving import MODEL, chat, chat_body, complete, ok, only_ascii, stream

WORDS = "once upon a time"
LOOSE: dict[str, Any] = {
    "verifier": {"type": "lossy", "threshold": 0.2},
    "drafter": "model",
    "draft_length": "fixed",
    "num_draft_tokens": 5,
    "logit_bias": only_ascii(),
    "return_provenance": True,
    "temperature": 0,
}
FIELDS = {"draft_token", "draft_token_id", "target_token", "target_token_id", "entropy", "gap", "rule"}
Told = list[tuple[str, dict[str, Any]]]


def told_by(entries: list[dict[str, Any]]) -> Told:
    return [(entry["provenance"], entry["verification"]) for entry in entries]


async def chat_tells(client: httpx.AsyncClient, **more: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    answer = await chat(client, **{**LOOSE, "logprobs": True, "max_tokens": 40, **more})
    return answer["choices"][0]["logprobs"]["content"], answer["speculation"]


async def test_each_token_tells_what_was_drafted_and_what_the_target_chose(client: httpx.AsyncClient) -> None:
    entries, report = await chat_tells(client)
    rules: list[str] = []
    for entry in entries:
        seen = entry["verification"]
        assert set(seen) == FIELDS
        loosened = entry["provenance"] == "lenient"
        assert (seen["target_token"] == entry["token"]) == (not loosened)
        assert (seen["draft_token"] is None) == (entry["provenance"] in ("target", "bonus"))
        assert (seen["draft_token"] == entry["token"]) == (loosened or entry["provenance"] == "native")
        assert (seen["rule"] == "lossy") == loosened
        assert seen["gap"] is None or seen["gap"] < 0
        rules += [seen["rule"]] if loosened else []
    assert len(rules) == report["loosened_tokens"]["lenient"] > 0
    ids = {entry["verification"]["target_token_id"]: entry["verification"]["target_token"] for entry in entries}
    for token_id, label in ids.items():
        found = ok(await client.post("/detokenize", json={"model": MODEL, "tokens": [token_id]}))
        assert found["prompt"] == label


async def test_what_typical_loosens_is_told_as_its_own_rule(client: httpx.AsyncClient) -> None:
    entries, report = await chat_tells(client, verifier={"type": "typical", "epsilon": 0.01})
    loosened = [entry["verification"] for entry in entries if entry["provenance"] == "typical"]
    assert {seen["rule"] for seen in loosened} == {"typical"}
    assert all(seen["entropy"] > 0 and seen["gap"] < 0 for seen in loosened)
    assert report["loosened_tokens"] == {"deferred": 0, "calibrated": 0, "typical": len(loosened)}


@pytest.mark.parametrize("verifier", ["off", "strict", {"type": "fly", "window": 1}, "csd", "hybrid"])
async def test_nothing_is_invented_where_nothing_was_judged(client: httpx.AsyncClient, verifier: Any) -> None:
    drafts = {"num_draft_tokens": 5} if isinstance(verifier, dict) else {"num_draft_tokens": 8}
    entries, report = await chat_tells(client, verifier=verifier, **drafts)
    loosened = [entry for entry in entries if entry["verification"]["rule"] is not None]
    assert len(loosened) == sum(report["loosened_tokens"].values())
    if not isinstance(verifier, dict):  # csd and hybrid have no memory here
        assert loosened == []
    if verifier in ("off", "strict"):
        assert {entry["verification"][name] for entry in entries for name in ("entropy", "gap")} == {None}


async def test_streams_tell_the_same(client: httpx.AsyncClient) -> None:
    whole, _ = await chat_tells(client)
    chunks = await stream(client, "/v1/chat/completions", chat_body(**{**LOOSE, "logprobs": True, "max_tokens": 40}))
    entries = [e for c in chunks for ch in c["choices"] if ch["logprobs"] for e in ch["logprobs"]["content"]]
    assert told_by(entries) == told_by(whole)


async def test_completions_and_generate_tell_the_same_of_the_same_tokens(client: httpx.AsyncClient) -> None:
    arrays = (await complete(client, WORDS, logprobs=0, max_tokens=30, **LOOSE))["choices"][0]["logprobs"]
    listed = list(zip(arrays["provenance"], arrays["verification"], strict=True))
    assert "lenient" in arrays["provenance"]
    parameters = {**{k: v for k, v in LOOSE.items() if k != "temperature"}, "max_new_tokens": 30, "details": True}
    details = ok(await client.post("/generate", json={"inputs": WORDS, "parameters": parameters}))["details"]
    assert told_by(details["tokens"]) == listed
    echoed = (await complete(client, WORDS, logprobs=0, max_tokens=30, echo=True, **LOOSE))["choices"][0]["logprobs"]
    prompt = len(echoed["tokens"]) - len(listed)
    assert echoed["verification"] == [None] * prompt + arrays["verification"]


async def test_responses_tell_the_same_as_chats(client: httpx.AsyncClient) -> None:
    whole, _ = await chat_tells(client)
    asked = {"model": MODEL, "input": WORDS, "include": ["message.output_text.logprobs"], "max_output_tokens": 40}
    answer = ok(await client.post("/v1/responses", json={**asked, **LOOSE}))
    assert told_by(answer["output"][0]["content"][0]["logprobs"]) == told_by(whole)


async def test_whoever_does_not_ask_gets_neither(client: httpx.AsyncClient) -> None:
    entries, _ = await chat_tells(client, return_provenance=False)
    assert not [entry for entry in entries if {"provenance", "verification"} & set(entry)]
