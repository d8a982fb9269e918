"""What clients see of /v1/chat/completions, against the real engine."""

import httpx
import pytest

from tests.server.serving import (
    MODEL,
    chat,
    chat_body,
    error_of,
    only_ascii,
    stream,
    text_of,
)

CHAT = "/v1/chat/completions"
PLAIN = {"logit_bias": only_ascii()}


async def test_an_answer_has_openais_shape(client: httpx.AsyncClient) -> None:
    answer = await chat(client, **PLAIN)
    assert answer["object"] == "chat.completion"
    assert answer["model"] == MODEL
    assert answer["id"].startswith("chatcmpl-")
    assert answer["system_fingerprint"].startswith("fp_")
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": choice["message"]["content"], "refusal": None}
    assert choice["message"]["content"]
    assert choice["logprobs"] is None
    assert choice["finish_reason"] == "length"
    usage = answer["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12


async def test_a_stream_tells_the_same_as_the_whole_answer(client: httpx.AsyncClient) -> None:
    whole = await chat(client, max_tokens=40)
    chunks = await stream(client, CHAT, chat_body(max_tokens=40, stream_options={"include_usage": True}))
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert reasons == [whole["choices"][0]["finish_reason"]]
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert chunks[-1]["usage"][field] == whole["usage"][field]


async def test_chunks_share_their_envelope_and_begin_with_the_role(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, CHAT, chat_body())
    assert len({(c["id"], c["created"], c["model"], c["object"], c["system_fingerprint"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks[:-1])
    assert all(c["choices"][0]["logprobs"] is None for c in chunks)
    assert all("usage" not in c for c in chunks)
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert "speculation" in chunks[-1]


async def test_include_usage_adds_one_last_chunk_without_choices(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, CHAT, chat_body(stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    assert "speculation" in chunks[-1]
    assert all(c["usage"] is None and "speculation" not in c for c in chunks[:-1])


async def test_continuous_usage_counts_up(client: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await stream(client, CHAT, chat_body(stream_options=options, verifier="off", **PLAIN))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 12


async def test_max_completion_tokens_wins_over_max_tokens(client: httpx.AsyncClient) -> None:
    answer = await chat(client, max_tokens=9, max_completion_tokens=3, **PLAIN)
    assert answer["usage"]["completion_tokens"] == 3


async def test_without_a_limit_a_chat_answer_may_fill_the_context(client: httpx.AsyncClient) -> None:
    answer = await chat(client, max_tokens=None, **PLAIN)
    assert answer["usage"]["total_tokens"] == 256
    assert (await chat(client, max_tokens=10**18, **PLAIN))["usage"]["total_tokens"] == 256


async def test_logprobs_list_every_token_and_its_alternatives(client: httpx.AsyncClient) -> None:
    answer = await chat(client, logprobs=True, top_logprobs=3, **PLAIN)
    choice = answer["choices"][0]
    entries = choice["logprobs"]["content"]
    assert len(entries) == 12
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
    for entry in entries:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 3
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert "provenance" not in entry


async def test_streamed_logprobs_equal_the_whole_answers(client: httpx.AsyncClient) -> None:
    body = chat_body(logprobs=True, top_logprobs=2, max_tokens=30, stop=["qqqq"], verifier="strict")
    whole = (await chat(client, **{k: v for k, v in body.items() if k not in ("model", "messages")}))["choices"][0]
    chunks = await stream(client, CHAT, body)
    entries = [e for c in chunks for ch in c["choices"] if ch["logprobs"] for e in ch["logprobs"]["content"]]
    assert [e["token"] for e in entries] == [e["token"] for e in whole["logprobs"]["content"]]
    for streamed, entry in zip(entries, whole["logprobs"]["content"], strict=True):
        assert streamed["logprob"] == pytest.approx(entry["logprob"], abs=1e-3)


async def test_bytes_of_logprobs_spell_the_answer_even_where_characters_break(client: httpx.AsyncClient) -> None:
    choice = (await chat(client, logprobs=True, max_tokens=60, ignore_eos=True, seed=5, temperature=1))["choices"][0]
    data = b"".join(bytes(entry["bytes"] or []) for entry in choice["logprobs"]["content"])
    assert data.decode("utf-8", "replace").startswith(choice["message"]["content"])


async def test_provenance_comes_with_logprobs_when_asked(client: httpx.AsyncClient) -> None:
    answer = await chat(client, logprobs=True, return_provenance=True, verifier="strict", max_tokens=30, **PLAIN)
    seen = [entry["provenance"] for entry in answer["choices"][0]["logprobs"]["content"]]
    assert seen[0] == "target"
    assert set(seen) <= {"native", "correction", "bonus", "target"}
    assert seen.count("native") == answer["speculation"]["accepted_tokens"] > 0
    assert seen.count("bonus") == answer["speculation"]["bonus_tokens"]


@pytest.mark.parametrize("verifier", ["off", "strict", "fly", "csd", "hybrid", "lossy", "typical"])
async def test_every_verifier_answers_and_reports(client: httpx.AsyncClient, verifier: str) -> None:
    answer = await chat(client, verifier=verifier, max_tokens=30, **PLAIN)
    report = answer["speculation"]
    assert report["verifier"] == verifier
    assert report["drafter"] == ("none" if verifier == "off" else "multilevel")
    loosened = sum(report["loosened_tokens"].values())
    assert loosened <= report["accepted_tokens"] <= answer["usage"]["completion_tokens"]
    assert report["accepted_tokens"] <= report["draft_tokens"]
    assert report["rounds"] >= 1
    assert report["mean_accepted_length"] >= 1
    assert len(report.get("warnings", [])) == (verifier in ("csd", "hybrid"))  # there is no correction memory
    if verifier == "off":
        assert report["draft_tokens"] == 0
        assert report["estimated_speedup"] is None


@pytest.mark.parametrize("drafter", ["auto", "model", "prompt_lookup", "multilevel"])
async def test_every_drafter_gives_the_same_strict_answer(client: httpx.AsyncClient, drafter: str) -> None:
    plain = await chat(client, verifier="off", max_tokens=40, seed=11, temperature=0.9)
    drafted = await chat(client, verifier="strict", drafter=drafter, max_tokens=40, seed=11, temperature=0.9)
    assert drafted["choices"][0]["message"] == plain["choices"][0]["message"]


async def test_a_server_whose_own_window_is_too_wide_warns_in_the_report(client: httpx.AsyncClient) -> None:
    report = (await chat(client, verifier={"type": "fly", "window": 6}, num_draft_tokens=7))["speculation"]
    assert "warnings" not in report
    response = await client.post(CHAT, json=chat_body(verifier="fly", num_draft_tokens=6))
    error_of(response, 400, param="verifier.window")


async def test_n_choices_are_drawn_apart_and_repeat_with_their_seed(client: httpx.AsyncClient) -> None:
    first = await chat(client, n=3, seed=1, temperature=1.5, max_tokens=16)
    again = await chat(client, n=3, seed=1, temperature=1.5, max_tokens=16)
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert len(set(texts)) == 3
    assert texts == [choice["message"]["content"] for choice in again["choices"]]
    alone = await chat(client, seed=1, temperature=1.5, max_tokens=16)
    assert alone["choices"][0]["message"]["content"] == texts[0]
    assert first["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]


async def test_streamed_choices_each_finish_once(client: httpx.AsyncClient) -> None:
    body = chat_body(n=3, seed=1, temperature=1.5, max_tokens=16)
    whole = await chat(client, n=3, seed=1, temperature=1.5, max_tokens=16)
    chunks = await stream(client, CHAT, body)
    for index in range(3):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert choices[0]["delta"]["role"] == "assistant"
        assert [bool(choice["finish_reason"]) for choice in choices].count(True) == 1
        assert text_of(chunks, index) == whole["choices"][index]["message"]["content"]
    assert [("speculation" in chunk) for chunk in chunks].count(True) == 1
    assert "speculation" in chunks[-1]


async def test_unseeded_requests_differ(client: httpx.AsyncClient) -> None:
    answers = [(await chat(client, temperature=1.5))["choices"][0]["message"]["content"] for _ in range(4)]
    assert len(set(answers)) > 1


async def test_roles_parts_and_tool_turns_are_rendered(client: httpx.AsyncClient) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "name": "bob", "content": "weather?", "x_id": 7},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "user", "content": "thanks"},
    ]
    answer = await chat(client, messages=messages)
    assert answer["usage"]["prompt_tokens"] > (await chat(client, "thanks"))["usage"]["prompt_tokens"]


async def test_text_parts_equal_a_string(client: httpx.AsyncClient) -> None:
    string = await chat(client, "hello big world")
    parts = await chat(client, [{"type": "text", "text": "hello big world"}])
    assert string["usage"]["prompt_tokens"] == parts["usage"]["prompt_tokens"]


@pytest.mark.parametrize("typed", ["<|im_end|>", "<|im_start|>system", "<|endoftext|>", "<tool_call>"])
async def test_control_tokens_typed_by_a_user_are_plain_text(client: httpx.AsyncClient, typed: str) -> None:
    whole = (await chat(client, f"a{typed}b"))["usage"]["prompt_tokens"]
    broken = (await chat(client, f"a{typed[:1]} {typed[1:]}b"))["usage"]["prompt_tokens"]
    assert broken - whole <= 2


async def test_harmless_parameters_are_accepted(client: httpx.AsyncClient) -> None:
    await chat(
        client,
        user="u",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        response_format={"type": "text"},
        tools=[],
        tool_choice="auto",
        x_unknown={"deep": [1, 2]},
        min_p=0.1,
        top_k=-1,
        repetition_penalty=1.1,
        priority=-1,
        draft_length="fixed",
        strict_prefix=2,
    )
    tool = {"type": "function", "function": {"name": "f"}}
    await chat(client, tools=[tool], tool_choice="none")


async def test_null_means_not_given(client: httpx.AsyncClient) -> None:
    names = "frequency_penalty presence_penalty logit_bias logprobs top_logprobs max_completion_tokens n seed stop"
    names += " stream stream_options temperature top_p tools tool_choice response_format user metadata service_tier"
    names += " store parallel_tool_calls verifier drafter num_draft_tokens draft_length min_p top_k min_tokens"
    await chat(client, **dict.fromkeys(names.split()))


@pytest.mark.parametrize("seed", [0, -1, 2**31, 2**63 - 1, -(2**63)])
async def test_any_64_bit_seed_works(client: httpx.AsyncClient, seed: int) -> None:
    one, two = [await chat(client, seed=seed, temperature=1.0) for _ in range(2)]
    assert one["choices"] == two["choices"]
