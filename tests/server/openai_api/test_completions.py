"""What clients see of /v1/completions, against the real engine."""

import httpx
import pytest

from tests.server.serving import (
    PADDED_VOCAB,
    complete,
    completion_body,
    error_of,
    only_ascii,
    stream,
    text_of,
    tokenizer,
)

COMPLETIONS = "/v1/completions"
PLAIN = {"logit_bias": only_ascii()}


async def test_an_answer_and_its_stream_agree(client: httpx.AsyncClient) -> None:
    whole = await complete(client, **PLAIN)
    assert whole["object"] == "text_completion"
    assert whole["id"].startswith("cmpl-")
    assert whole["choices"][0]["logprobs"] is None
    assert "speculation" in whole
    chunks = await stream(client, COMPLETIONS, completion_body(**PLAIN))
    assert text_of(chunks) == whole["choices"][0]["text"]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]] == ["length"]
    assert "speculation" in chunks[-1]


async def test_sixteen_tokens_are_the_default(client: httpx.AsyncClient) -> None:
    answer = await complete(client, max_tokens=None, **PLAIN)
    assert answer["usage"]["completion_tokens"] == 16


async def test_each_prompt_of_a_list_answers_as_it_does_alone(client: httpx.AsyncClient) -> None:
    prompts = ["the quick", "once upon a", "two three"]
    together = await complete(client, prompts, n=2, seed=9, temperature=1.0)
    assert [choice["index"] for choice in together["choices"]] == list(range(6))
    prompt_tokens = 0
    for index, prompt in enumerate(prompts):
        alone = await complete(client, prompt, n=2, seed=9, temperature=1.0)
        texts = [choice["text"] for choice in together["choices"][2 * index : 2 * index + 2]]
        assert texts == [choice["text"] for choice in alone["choices"]]
        prompt_tokens += alone["usage"]["prompt_tokens"]
    assert together["usage"]["prompt_tokens"] == prompt_tokens


async def test_equal_prompts_without_a_seed_differ(client: httpx.AsyncClient) -> None:
    answer = await complete(client, ["the quick"] * 4, temperature=1.5)
    assert len({choice["text"] for choice in answer["choices"]}) > 1


async def test_prompts_may_be_token_ids(client: httpx.AsyncClient) -> None:
    ids = tokenizer().encode("the quick brown fox")
    one = await complete(client, ids)
    assert one["usage"]["prompt_tokens"] == len(ids)
    assert one["choices"][0]["text"] == (await complete(client, "the quick brown fox"))["choices"][0]["text"]
    assert len((await complete(client, [ids, ids[:2]]))["choices"]) == 2


async def test_echo_puts_the_prompt_in_front(client: httpx.AsyncClient) -> None:
    prompt = "once upon 🎉 naïve"
    plain = (await complete(client, prompt))["choices"][0]["text"]
    assert (await complete(client, prompt, echo=True))["choices"][0]["text"] == prompt + plain
    assert text_of(await stream(client, COMPLETIONS, completion_body(prompt, echo=True))) == prompt + plain
    ids = tokenizer().encode(prompt)
    assert (await complete(client, ids, echo=True))["choices"][0]["text"] == prompt + plain


async def test_logprobs_are_parallel_arrays(client: httpx.AsyncClient) -> None:
    choice = (await complete(client, logprobs=3, return_provenance=True, **PLAIN))["choices"][0]
    logprobs = choice["logprobs"]
    assert {len(values) for values in logprobs.values()} == {12}
    assert "".join(logprobs["tokens"]) == choice["text"]
    offset = 0
    for token, start, value, top in zip(
        logprobs["tokens"], logprobs["text_offset"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert start == offset
        offset += len(token)
        assert top[token] == value
        assert len(top) in (3, 4)


async def test_text_offsets_count_characters_not_bytes(client: httpx.AsyncClient) -> None:
    choice = (await complete(client, logprobs=0, temperature=1, seed=2, max_tokens=60, ignore_eos=True))["choices"][0]
    offsets = choice["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    assert offsets[0] == 0
    assert offsets[-1] <= len(choice["text"])


async def test_streamed_offsets_equal_the_whole_answers(client: httpx.AsyncClient) -> None:
    body = completion_body(logprobs=2, max_tokens=30, seed=2, temperature=1)
    whole = (await client.post(COMPLETIONS, json=body)).json()["choices"][0]["logprobs"]
    chunks = await stream(client, COMPLETIONS, body)
    logprobs = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"]]
    for field in ("tokens", "text_offset"):
        assert [value for part in logprobs for value in part[field]] == whole[field]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [PADDED_VOCAB]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": ["a"] * 33, "n": 2}, "n"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 17}, "best_of"),
        ({"best_of": 16, "prompt": ["a"] * 5}, "best_of"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"return_provenance": True}, "return_provenance"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0, "min_tokens": 1}, "min_tokens"),
    ],
)
async def test_bad_values_are_refused_by_name(client: httpx.AsyncClient, change: dict, param: str) -> None:
    error_of(await client.post(COMPLETIONS, json={**completion_body(), **change}), 400, param=param)


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_is_built_for_an_answer_before_its_numbers_are_checked(
    client: httpx.AsyncClient, stream: bool
) -> None:
    """An echo per choice was once built first: n = 10^9 filled the memory, an unknown token id was a 500."""
    for change, param in (({"prompt": "a", "n": 10**12}, "n"), ({"prompt": [10**9]}, "prompt")):
        body = completion_body(echo=True, stream=stream, **change)
        error_of(await client.post(COMPLETIONS, json=body), 400, param=param)


async def test_a_stop_string_is_shown_on_request(client: httpx.AsyncClient) -> None:
    free = (await complete(client, max_tokens=30, **PLAIN))["choices"][0]["text"]
    stop = free[9:12]
    end = free.index(stop) + len(stop)
    options = {"max_tokens": 30, "stop": [stop], **PLAIN}
    hidden = (await complete(client, **options))["choices"][0]
    assert (hidden["text"], hidden["finish_reason"]) == (free[: end - len(stop)], "stop")
    shown = (await complete(client, include_stop_str_in_output=True, **options))["choices"][0]
    assert (shown["text"], shown["finish_reason"]) == (free[:end], "stop")
    chunks = await stream(client, COMPLETIONS, completion_body(include_stop_str_in_output=True, **options))
    assert text_of(chunks) == free[:end]


async def test_best_of_equal_to_n_is_fine(client: httpx.AsyncClient) -> None:
    assert len((await complete(client, n=2, best_of=2))["choices"]) == 2


@pytest.mark.parametrize("prompt", ["word " * 300, [5] * 256, ["a", "word " * 300]])
async def test_a_prompt_beyond_the_context_is_refused(client: httpx.AsyncClient, prompt: object) -> None:
    for more in ({}, {"stream": True}):
        response = await client.post(COMPLETIONS, json=completion_body(prompt, **more))
        message = error_of(response, 400, param="prompt", code="context_length_exceeded")
        assert message.startswith("This model's maximum context length is 256 tokens")
