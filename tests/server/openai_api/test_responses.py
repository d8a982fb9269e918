"""What clients see of /v1/responses, against the real engine."""

from typing import Any

import httpx
import openai
import pytest

from tests.server.listening import listening, sdk
from tests.server.openai_api.responses import PATH, anonymous, events_of, respond, text_of, told
from tests.server.serving import MODEL, chat, error_of, only_ascii

PLAIN = {"logit_bias": only_ascii()}
LOGPROBS = {"include": ["message.output_text.logprobs"]}
MESSAGE = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]


async def test_an_answer_has_openais_shape(client: httpx.AsyncClient) -> None:
    answer = await respond(client, **PLAIN)
    assert answer["object"] == "response"
    assert answer["id"].startswith("resp_")
    assert answer["model"] == MODEL
    (item,) = answer["output"]
    assert item["id"].startswith("msg_")
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "incomplete")
    (part,) = item["content"]
    assert part["text"]
    assert part == {"type": "output_text", "text": part["text"], "annotations": [], "logprobs": []}
    assert answer["store"] is False
    assert answer["error"] is None


async def test_it_says_the_same_as_a_chat_completion(client: httpx.AsyncClient) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "once upon a time"}]
    same = {"max_tokens": 30, "seed": 5, "temperature": 0.9, **PLAIN}
    completion = await chat(client, messages=messages, **same)
    seeded = {"seed": 5, "temperature": 0.9, **PLAIN}
    answer = await respond(client, instructions="be brief", max_output_tokens=30, **seeded)
    assert text_of(answer) == completion["choices"][0]["message"]["content"]
    counted = completion["usage"]
    assert answer["usage"] == {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {**answer["usage"]["input_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }
    items = await respond(client, messages, max_output_tokens=30, **seeded)
    assert text_of(items) == text_of(answer)
    assert items["usage"]["input_tokens_details"]["cached_tokens"] > 0


async def test_an_answer_cut_by_its_limit_is_incomplete(client: httpx.AsyncClient) -> None:
    answer = await respond(client, max_output_tokens=3, **PLAIN)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["completed_at"] is None
    assert answer["usage"]["output_tokens"] == 3


async def test_an_answer_that_ends_by_itself_is_completed(client: httpx.AsyncClient) -> None:
    text = text_of(await respond(client, **PLAIN))
    answer = await respond(client, stop=text[4:7], **PLAIN)
    assert text_of(answer) == text[: text.index(text[4:7])]
    assert answer["status"] == "completed"
    assert answer["completed_at"] >= answer["created_at"]
    assert answer["incomplete_details"] is None
    assert [item["status"] for item in answer["output"]] == ["completed"]


async def test_without_a_limit_an_answer_may_fill_the_context(client: httpx.AsyncClient) -> None:
    answer = await respond(client, max_output_tokens=None, **PLAIN)
    assert answer["usage"]["total_tokens"] == 256
    assert answer["status"] == "incomplete"


async def test_an_answer_without_a_word_still_has_its_message(client: httpx.AsyncClient) -> None:
    first = (await respond(client, **LOGPROBS, max_output_tokens=1, **PLAIN))["output"][0]["content"][0]["text"]
    events = await events_of(client, stop=first, **PLAIN)
    assert told(events) == ["created", "in_progress", *(kind for kind in MESSAGE if "delta" not in kind), "completed"]
    (item,) = events[-1]["response"]["output"]
    assert item["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]


@pytest.mark.parametrize("verifier", ["off", "strict", "fly", "hybrid", "lossy"])
async def test_a_stream_tells_the_same_as_the_whole_answer(client: httpx.AsyncClient, verifier: str) -> None:
    more: dict[str, Any] = {"verifier": verifier, "max_output_tokens": 40, "metadata": {"a": "b"}, "user": "u"}
    whole = await respond(client, **more)
    events = await events_of(client, **more)
    assert told(events) == ["created", "in_progress", *MESSAGE, "incomplete"]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas) == text_of(whole)
    last = events[-1]["response"]
    assert anonymous(last) == anonymous(whole)
    assert last["speculation"]["verifier"] == verifier


async def test_every_event_of_an_item_names_it_and_the_done_ones_hold_it(client: httpx.AsyncClient) -> None:
    events = await events_of(client, max_output_tokens=40, **LOGPROBS)
    created, in_progress, added, *within, done, last = events
    for event in (created, in_progress):
        snapshot = event["response"]
        assert snapshot["status"] == "in_progress"
        assert snapshot["output"] == []
        assert snapshot["id"] == last["response"]["id"]
        assert not {"usage", "speculation"} & set(snapshot)
    assert added["item"]["content"] == []
    assert {event["item_id"] for event in within} == {added["item"]["id"]}
    assert {event["output_index"] for event in [added, *within, done]} == {0}
    assert {event["content_index"] for event in within} == {0}
    assert [done["item"]] == last["response"]["output"]
    assert within[-1]["part"] == done["item"]["content"][0]
    assert within[-2]["text"] == within[-1]["part"]["text"]
    assert within[-2]["logprobs"] == within[-1]["part"]["logprobs"]


async def test_logprobs_come_with_the_text_they_belong_to(client: httpx.AsyncClient) -> None:
    more = {**LOGPROBS, "top_logprobs": 3, "max_output_tokens": 40, **PLAIN}
    events = await events_of(client, **more)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    for event in deltas:
        assert "".join(entry["token"] for entry in event["logprobs"]) == event["delta"]
    entries = events[-1]["response"]["output"][0]["content"][0]["logprobs"]
    assert [entry for event in deltas for entry in event["logprobs"]] == entries
    assert len(entries) == 40
    for entry in entries:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 3
    completion = await chat(client, logprobs=True, top_logprobs=3, max_tokens=40, **PLAIN)
    listed = completion["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in listed] == [entry["token"] for entry in entries]
    for entry, same in zip(entries, listed, strict=True):
        assert entry["logprob"] == pytest.approx(same["logprob"], abs=1e-3)


async def test_provenance_comes_with_logprobs_when_asked(client: httpx.AsyncClient) -> None:
    answer = await respond(client, **LOGPROBS, return_provenance=True, max_output_tokens=30, **PLAIN)
    seen = [entry["provenance"] for entry in answer["output"][0]["content"][0]["logprobs"]]
    assert seen.count("native") == answer["speculation"]["accepted_tokens"] > 0


async def test_what_was_asked_is_repeated(client: httpx.AsyncClient) -> None:
    asked = {
        "instructions": "be brief",
        "max_output_tokens": 5,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_logprobs": 2,
        "user": "u",
    }
    answer = await respond(client, **asked, **LOGPROBS)
    assert {key: answer[key] for key in asked} == asked
    defaults = await respond(client, temperature=None)
    assert (defaults["temperature"], defaults["top_p"], defaults["parallel_tool_calls"]) == (1.0, 1.0, True)
    assert defaults["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert defaults["truncation"] == "disabled"
    assert "user" not in defaults


async def test_harmless_parameters_are_accepted(client: httpx.AsyncClient) -> None:
    await respond(
        client,
        store=False,
        background=False,
        truncation="disabled",
        service_tier="auto",
        include=[],
        reasoning={"effort": None},
        text={"format": {"type": "text"}, "verbosity": "medium"},
        tools=[],
        tool_choice="auto",
        prompt_cache_retention="in_memory",
        x_unknown=1,
        top_k=4,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        drafter="prompt_lookup",
        num_draft_tokens=4,
        strict_prefix=2,
        n=1,
    )
    names = "instructions include text reasoning truncation tools tool_choice stream stream_options metadata store"
    names += " previous_response_id conversation prompt background top_logprobs max_output_tokens service_tier verifier"
    await respond(client, **dict.fromkeys(names.split()))
    await events_of(client, stream_options={"include_obfuscation": False})


async def test_nothing_is_stored(client: httpx.AsyncClient) -> None:
    stored = f"{PATH}/{(await respond(client))['id']}"
    for response in (await client.get(stored), await client.delete(stored), await client.post(f"{stored}/cancel")):
        assert "stores no" in error_of(response, 404, code="response_not_found")


async def test_the_sdk_reads_answers_and_streams() -> None:
    more: dict[str, Any] = {"model": MODEL, "input": "once upon a time", "temperature": 0}
    async with listening() as (_, url), sdk(url) as client:
        extra = {"verifier": "lossy", **PLAIN}
        whole = await client.responses.create(**more, max_output_tokens=30, extra_body=extra)
        assert whole.output_text
        assert (whole.model_extra or {})["speculation"]["verifier"] == "lossy"

        last = None
        async for event in await client.responses.create(**more, max_output_tokens=30, stream=True, extra_body=extra):
            last = event
        assert last is not None
        assert last.type == "response.incomplete"
        assert last.response.output_text == whole.output_text

        text = whole.output_text[4:7]
        deltas: list[str] = []
        async with client.responses.stream(**more, extra_body={**extra, "stop": text}) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    deltas.append(event.delta)
            final = await stream.get_final_response()
        assert final.output_text == "".join(deltas) == whole.output_text[: whole.output_text.index(text)]

        again = await client.responses.create(
            model=MODEL,
            input=[{"role": "user", "content": "once upon a time"}, *whole.output, {"role": "user", "content": "more"}],  # type: ignore[list-item]
            max_output_tokens=4,
        )
        assert again.usage is not None
        assert whole.usage is not None
        assert again.usage.input_tokens > whole.usage.total_tokens - 4

        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(whole.id)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(**more, previous_response_id=whole.id)
        assert refused.value.param == "previous_response_id"
