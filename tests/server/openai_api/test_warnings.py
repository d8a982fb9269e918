"""What a request asked for in vain is said in its report."""

import time
from typing import Any

import httpx
import pytest

from tests.server.openai_api.responses import respond
from tests.server.serving import chat, chat_body, complete, running, serve_config, stream


async def warnings_of(client: httpx.AsyncClient, **request: Any) -> list[str]:
    report = (await chat(client, **request))["speculation"]
    return list(report.get("warnings", []))


@pytest.mark.parametrize(
    ("verifier", "effect"), [("csd", "csd loosens nothing"), ("hybrid", "hybrid loosens only what fly does")]
)
async def test_a_verifier_without_a_correction_memory_says_so(verifier: str, effect: str) -> None:
    async with running(calibrated=["prompt_lookup"]) as (_, client):
        warning = f"No correction memory is loaded for the drafter 'multilevel': {effect}."
        partly = f"{warning[:-1]} of what it proposes."
        assert await warnings_of(client, verifier=verifier) == [partly]
        assert await warnings_of(client, verifier=verifier, draft_length="fixed") == [warning]
        assert await warnings_of(client, verifier={"type": verifier}, drafter="prompt_lookup") == []
        for other in ("off", "strict", "fly", "lossy"):
            assert await warnings_of(client, verifier=other) == []
        chunks = await stream(client, "/v1/chat/completions", chat_body(verifier=verifier))
        assert chunks[-1]["speculation"]["warnings"] == [partly]
    async with running(serve_config(default_verifier=verifier)) as (_, client):
        assert await warnings_of(client) == [warning]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("verifer", "verifier"),
        ("Verifier", "verifier"),
        ("draft_tokens", "num_draft_tokens"),
        ("strictprefix", "strict_prefix"),
        ("return_provenence", "return_provenance"),
    ],
)
async def test_a_misspelt_field_of_ours_is_pointed_out(client: httpx.AsyncClient, written: str, meant: str) -> None:
    warning = f"Unknown field '{written}' was ignored; did you mean '{meant}'?"
    for verifier in ("off", "strict"):
        assert await warnings_of(client, **{written: "fly"}, verifier=verifier) == [warning]
    assert (await complete(client, **{written: 1}))["speculation"]["warnings"] == [warning]


async def test_fields_of_other_apis_are_ignored_in_silence(client: httpx.AsyncClient) -> None:
    others = "top_a repeat_penalty num_speculative_tokens cache_prompt extra_body"
    assert await warnings_of(client, **dict.fromkeys(others.split(), 1)) == []


async def test_what_asks_for_another_manner_is_taken_and_said_to_have_no_effect(client: httpx.AsyncClient) -> None:
    sentence = "'{}' has no effect: the model answers as it was trained to."
    assert await warnings_of(client, reasoning_effort="low") == [sentence.format("reasoning_effort")]
    assert await warnings_of(client, verbosity="high") == [sentence.format("verbosity")]
    assert await warnings_of(client, verbosity="medium", reasoning_effort=None) == []
    asked = {"reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"}}
    answer = await respond(client, **asked)
    names = ("reasoning.effort", "reasoning.summary", "text.verbosity")
    assert answer["speculation"]["warnings"] == [sentence.format(name) for name in names]


async def test_hints_are_bounded_in_number_length_and_work(client: httpx.AsyncClient) -> None:
    unknown = {f"verifier{i}": 1 for i in range(10_000)} | {"verifier" * 10_000: 1, "verifie\x07": 1}
    began = time.perf_counter()
    warnings = await warnings_of(client, **unknown)
    assert time.perf_counter() - began < 5
    assert len(warnings) == 4
    assert max(map(len, warnings)) < 120
    (hint,) = await warnings_of(client, **{"verifie\x07": 1})
    assert hint.isprintable()
