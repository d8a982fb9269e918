"""echo with logprobs: the prompt's own log-probabilities, as evaluation harnesses read them."""

import asyncio
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch

import server.openai_api.completions
from server.openai_api.parameters import make_plan
from tests.naive import plain_logits
from tests.server.serving import (
    CONTEXT,
    complete,
    completion_body,
    error_of,
    only_ascii,
    stream,
    target_model,
    text_of,
    tokenizer,
)

COMPLETIONS = "/v1/completions"
ECHO = {"echo": True, "logprobs": 1, "temperature": 0}
STORY = "once upon a time there was a story about a king who counted one two three"
PROMPTS = ["the quick brown fox", STORY, "naïve café 🎉 你好 <|im_end|>\nx", "a"]


@functools.cache
def expected(ids: tuple[int, ...]) -> tuple[list[float], list[int]]:
    """Log-probabilities of every token but the first by transformers, and what it would have said instead."""
    rows = torch.log_softmax(plain_logits(target_model(), list(ids)), -1)[:-1]
    return [float(row[token]) for row, token in zip(rows, ids[1:], strict=True)], rows.argmax(-1).tolist()


def check(choice: dict[str, Any], ids: list[int]) -> None:
    logprobs = choice["logprobs"]
    wanted, greedy = expected(tuple(ids))
    told = logprobs["token_logprobs"][: len(ids)]
    assert (told[0], logprobs["top_logprobs"][0]) == (None, None)
    assert told[1:] == pytest.approx(wanted, abs=1e-4)
    for token, value, top, best in zip(ids[1:], told[1:], logprobs["top_logprobs"][1:], greedy, strict=False):
        assert (value == max(top.values())) == (token == best)
    assert len({len(values) for values in logprobs.values()}) == 1


def encode(prompt: str) -> list[int]:
    ids: list[int] = tokenizer().encode(prompt)
    return ids


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("prompt", PROMPTS)
async def test_they_equal_transformers_own(client: httpx.AsyncClient, prompt: str, max_tokens: int) -> None:
    ids = encode(prompt)
    for given in (prompt, ids):
        answer = await complete(client, given, max_tokens=max_tokens, **ECHO)
        [choice] = answer["choices"]
        check(choice, ids)
        assert answer["usage"]["completion_tokens"] == len(choice["logprobs"]["tokens"]) - len(ids) <= max_tokens
        assert choice["finish_reason"] in ("length", "stop")
        plain = await complete(client, given, max_tokens=max_tokens, temperature=0, echo=True)
        assert choice["text"] == plain["choices"][0]["text"]


@pytest.mark.parametrize("verifier", ["off", "strict", {"type": "fly", "window": 2}, {"type": "hybrid", "window": 2}])
async def test_a_batch_is_told_as_each_alone_whoever_else_runs(client: httpx.AsyncClient, verifier: Any) -> None:
    """The last prompts share long prefixes with answers that are being cached by then."""
    prompts = [encode(text) for text in (*PROMPTS, STORY * 2, STORY * 2 + " more")]
    company = asyncio.gather(
        *(complete(client, STORY * 2, max_tokens=60, seed=n, temperature=1, verifier=verifier) for n in range(3))
    )
    for _ in range(2):
        answer = await complete(client, prompts, max_tokens=1, verifier=verifier, **ECHO)
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(prompts)))
        for choice, ids in zip(answer["choices"], prompts, strict=True):
            check(choice, ids)
    await company


@pytest.mark.parametrize("max_tokens", [0, 12])
async def test_a_stream_tells_the_prompt_first_and_the_same_in_all(client: httpx.AsyncClient, max_tokens: int) -> None:
    body = completion_body(PROMPTS[:2], max_tokens=max_tokens, return_provenance=True, **{**ECHO, "logprobs": 3})
    whole = (await client.post(COMPLETIONS, json=body)).json()["choices"]
    chunks = await stream(client, COMPLETIONS, body)
    for index, prompt in enumerate(PROMPTS[:2]):
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert parts[0]["text"] == prompt
        check(parts[0], encode(prompt))
        assert text_of(chunks, index) == whole[index]["text"]
        for name, values in whole[index]["logprobs"].items():
            if name in ("tokens", "text_offset", "provenance"):
                assert [value for part in parts for value in part["logprobs"][name]] == values
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [whole[index]["finish_reason"]]


async def test_a_long_prompts_stream_comes_in_parts(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.openai_api.completions._TOKENS_A_PART", 7)
    prompt = "naïve 🎉🎉 café " + STORY
    body = completion_body(prompt, max_tokens=3, **ECHO)
    whole = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]
    chunks = await stream(client, COMPLETIONS, body)
    assert text_of(chunks) == whole["text"]
    assert len(chunks) > 5
    offsets = [v for c in chunks for choice in c["choices"] for v in choice["logprobs"]["text_offset"]]
    assert offsets == whole["logprobs"]["text_offset"]


def pieces(choice: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each token's label, and its part of the text by the offsets."""
    offsets = choice["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    assert offsets[0] == 0
    ends = itertools.pairwise([*offsets, len(choice["text"])])
    return zip(choice["logprobs"]["tokens"], [choice["text"][a:b] for a, b in ends], strict=True)


async def test_offsets_cut_the_text_at_its_tokens(client: httpx.AsyncClient) -> None:
    for prompt in ("the quick <|im_end|>\nbrown", encode("the quick brown"), STORY):
        answer = await complete(client, prompt, max_tokens=6, logit_bias=only_ascii(), **ECHO)
        assert all(label == part for label, part in pieces(answer["choices"][0]))
    answer = await complete(client, "🎉 naïve", max_tokens=1, logit_bias=only_ascii(), **ECHO)
    for label, part in pieces(answer["choices"][0]):
        assert label == part or label.startswith("bytes:")


async def test_choices_each_tell_the_prompt(client: httpx.AsyncClient) -> None:
    answer = await complete(client, PROMPTS[:2], n=2, max_tokens=3, seed=4, **{**ECHO, "temperature": 1.0})
    for index, choice in enumerate(answer["choices"]):
        check(choice, encode(PROMPTS[index // 2]))


async def test_no_tokens_at_all(client: httpx.AsyncClient) -> None:
    answer = await complete(client, STORY, max_tokens=0)
    assert answer["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"]["completion_tokens"] == 0
    answer = await complete(client, STORY, max_tokens=0, echo=True)
    assert answer["choices"][0]["text"] == STORY
    chunks = await stream(client, COMPLETIONS, completion_body(STORY, max_tokens=0, echo=True))
    assert text_of(chunks) == STORY
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_the_longest_prompt(client: httpx.AsyncClient) -> None:
    ids = (encode(STORY) * 20)[: CONTEXT - 1]
    check((await complete(client, ids, max_tokens=1, **ECHO))["choices"][0], ids)
    error_of(await client.post(COMPLETIONS, json=completion_body([*ids, 5], **ECHO)), 400, "prompt")


class TestBestOf:
    async def test_the_likeliest_per_token_are_answered_best_first(self, client: httpx.AsyncClient) -> None:
        options: dict[str, Any] = {"temperature": 1.3, "seed": 8, "max_tokens": 10}
        every = (await complete(client, STORY, n=6, logprobs=0, **options))["choices"]

        def mean(choice: dict[str, Any]) -> float:
            values = choice["logprobs"]["token_logprobs"]
            return float(sum(values) / len(values))

        ranked = sorted(every, key=mean, reverse=True)
        assert len({choice["text"] for choice in every}) > 3
        answer = await complete(client, STORY, n=2, best_of=6, **options)
        assert [choice["text"] for choice in answer["choices"]] == [choice["text"] for choice in ranked[:2]]
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert answer["choices"][0]["logprobs"] is None
        total = sum(len(choice["logprobs"]["tokens"]) for choice in every)
        assert answer["usage"]["completion_tokens"] == total

    async def test_of_each_prompt_of_a_list(self, client: httpx.AsyncClient) -> None:
        options: dict[str, Any] = {"temperature": 1.3, "seed": 8, "max_tokens": 8, "best_of": 3, "echo": True}
        together = await complete(client, PROMPTS[:2], logprobs=2, **options)
        for index, prompt in enumerate(PROMPTS[:2]):
            alone = await complete(client, prompt, **options)
            assert together["choices"][index]["text"] == alone["choices"][0]["text"]
            check(together["choices"][index], encode(prompt))

    async def test_as_many_as_choices_may_be_streamed_in_their_order(self, client: httpx.AsyncClient) -> None:
        body = completion_body(n=2, best_of=2, seed=1, temperature=1.0)
        chunks = await stream(client, COMPLETIONS, body)
        whole = await complete(client, n=2, seed=1, temperature=1.0)
        assert [text_of(chunks, i) for i in range(2)] == [choice["text"] for choice in whole["choices"]]


@pytest.mark.parametrize("max_tokens", [0, 4])
async def test_the_prompt_is_computed_for_one_of_its_candidates_and_told_with_each(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, max_tokens: int
) -> None:
    plans = []

    def noting(*given: Any) -> Any:
        plans.append(make_plan(*given))
        return plans[-1]

    monkeypatch.setattr(server.openai_api.completions, "make_plan", noting)
    more = {**ECHO, "n": 3, "temperature": 1.0, "seed": 1, "max_tokens": max_tokens, "verifier": "off"}
    whole = (await complete(client, PROMPTS[:2], **more))["choices"]
    assert [request.prompt_logprobs for request in plans[0].requests] == [1, None, None] * 2
    chunks = await stream(client, COMPLETIONS, completion_body(PROMPTS[:2], **more))
    for index, choice in enumerate(whole):
        check(choice, encode(PROMPTS[index // 3]))
        pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert pieces[0]["text"] == PROMPTS[index // 3]
        told = [value for piece in pieces for value in (piece["logprobs"] or {}).get("token_logprobs", [])]
        assert told == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-4)
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
    best = (await complete(client, STORY, **{**more, "n": 1, "best_of": 3}))["choices"]
    check(best[0], encode(STORY))
