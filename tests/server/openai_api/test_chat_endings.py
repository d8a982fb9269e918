"""How chat answers end: stop strings, stop tokens, EOS, and limits inside a character."""

import httpx
import pytest

from tests.server.serving import (
    chat,
    chat_body,
    only_ascii,
    stream,
    text_of,
)

CHAT = "/v1/chat/completions"
PLAIN = {"logit_bias": only_ascii()}


@pytest.mark.parametrize("verifier", ["off", "strict", "lossy"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_a_stop_string_cuts_the_text_and_nothing_leaks(
    client: httpx.AsyncClient, verifier: str, size: int
) -> None:
    kwargs = {"max_tokens": 40, "verifier": verifier, **PLAIN}
    full = (await chat(client, **kwargs))["choices"][0]["message"]["content"]
    stop = next(
        full[i : i + size] for i in range(len(full) // 3, len(full) - size) if full.find(full[i : i + size]) == i
    )
    cut = await chat(client, stop=[stop, "\x00never"], logprobs=True, **kwargs)
    choice = cut["choices"][0]
    assert choice["message"]["content"] == full[: full.find(stop)]
    assert choice["finish_reason"] == "stop"
    listed = "".join(entry["token"] for entry in choice["logprobs"]["content"])
    assert full.startswith(listed)
    assert stop in listed
    assert len(choice["logprobs"]["content"]) == cut["usage"]["completion_tokens"] < 40
    chunks = await stream(client, CHAT, chat_body(stop=stop, stream_options={"include_usage": True}, **kwargs))
    assert text_of(chunks) == choice["message"]["content"]
    assert chunks[-1]["usage"]["completion_tokens"] == cut["usage"]["completion_tokens"]


async def test_a_stop_string_before_min_tokens_stays_in_the_text(client: httpx.AsyncClient) -> None:
    full = (await chat(client, max_tokens=20, verifier="off", **PLAIN))["choices"][0]["message"]["content"]
    answer = await chat(client, max_tokens=20, min_tokens=20, stop=full[:3], verifier="off", **PLAIN)
    assert answer["choices"][0]["message"]["content"] == full
    assert answer["usage"]["completion_tokens"] == 20


async def test_text_held_back_for_a_stop_string_is_flushed_at_the_end(client: httpx.AsyncClient) -> None:
    full = (await chat(client, max_tokens=20, **PLAIN))["choices"][0]["message"]["content"]
    chunks = await stream(client, CHAT, chat_body(max_tokens=20, stop=[full[-3:] + "\x01never"], **PLAIN))
    assert text_of(chunks) == full


async def test_stop_token_ids_end_the_answer_with_the_token_itself(client: httpx.AsyncClient) -> None:
    bias = {"40": 100}  # one ASCII character
    answer = await chat(client, logit_bias=bias, stop_token_ids=[40], logprobs=True)
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["message"]["content"] == answer["choices"][0]["logprobs"]["content"][0]["token"]


async def test_eos_ends_an_answer_without_showing(client: httpx.AsyncClient) -> None:
    bias = {"2": 100}  # <|im_end|>
    answer = await chat(client, logit_bias=bias, logprobs=True)
    choice = answer["choices"][0]
    assert choice["message"]["content"] == ""
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 1
    (entry,) = choice["logprobs"]["content"]
    assert entry["token"] == "<|im_end|>"
    assert entry["bytes"] is None
    ignoring = await chat(client, logit_bias=bias, ignore_eos=True, max_tokens=5)
    assert ignoring["usage"]["completion_tokens"] == 5
    assert ignoring["choices"][0] | {"logprobs": None} == choice | {"finish_reason": "length", "logprobs": None}


async def test_an_answer_cut_inside_a_character_is_the_same_streamed_and_not(client: httpx.AsyncClient) -> None:
    for limit in range(1, 13):
        kwargs = {"max_tokens": limit, "seed": 3, "temperature": 1.2}
        whole = (await chat(client, **kwargs))["choices"][0]["message"]["content"]
        assert text_of(await stream(client, CHAT, chat_body(**kwargs))) == whole
