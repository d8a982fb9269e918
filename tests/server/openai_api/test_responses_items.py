"""Items of the Responses API as chat messages."""

from typing import Any

import pytest

from server.errors import ApiError
from server.openai_api.responses_items import to_messages

USER = {"role": "user", "content": "weather in Paris?"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Paris"}', "id": "fc_1"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
CALLED = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
SAID = {
    "type": "message",
    "id": "msg_1",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "I look", "annotations": [], "logprobs": []}],
}


def test_a_string_is_one_users_message() -> None:
    assert to_messages("hi", None) == [{"role": "user", "content": "hi"}]


def test_instructions_come_first_as_the_system() -> None:
    system = {"role": "system", "content": "be brief"}
    assert to_messages("hi", "be brief") == [system, {"role": "user", "content": "hi"}]
    assert to_messages([USER], "be brief") == [system, USER]


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
@pytest.mark.parametrize("kind", [{}, {"type": "message"}])
def test_messages_keep_their_roles_and_join_their_parts(role: str, kind: dict[str, Any]) -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    for content, text in (("plain", "plain"), (parts, "a\nb"), ([], ""), ("", "")):
        assert to_messages([{**kind, "role": role, "content": content}], None) == [{"role": role, "content": text}]


def test_a_refusal_sent_back_is_what_the_assistant_said() -> None:
    item = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert to_messages([item], None) == [{"role": "assistant", "content": "no"}]


def test_what_an_assistant_thought_said_and_called_is_one_turn() -> None:
    second = {**CALL, "call_id": "call_2"}
    items = [USER, THOUGHT, SAID, CALL, second, OUTPUT, {**OUTPUT, "call_id": "call_2"}, {**USER, "content": "thanks"}]
    turn = {"role": "assistant", "content": "I look", "reasoning_content": "hm"}
    assert to_messages(items, None) == [
        USER,
        {**turn, "tool_calls": [CALLED, {**CALLED, "id": "call_2"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_2", "content": "sunny"},
        {"role": "user", "content": "thanks"},
    ]


def test_a_call_without_words_is_a_turn_of_its_own() -> None:
    turn = {"role": "assistant", "content": "", "tool_calls": [CALLED]}
    tool = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    assert to_messages([USER, CALL, OUTPUT, SAID], None) == [
        USER,
        turn,
        tool,
        {"role": "assistant", "content": "I look"},
    ]
    again = {**CALL, "call_id": "call_2"}
    assert to_messages([USER, CALL, OUTPUT, again], None) == [
        USER,
        turn,
        tool,
        {**turn, "tool_calls": [{**CALLED, "id": "call_2"}]},
    ]
    assert to_messages([SAID, USER, CALL], None)[2] == turn


def test_thoughts_join_the_call_that_they_led_to() -> None:
    (_, turn, _) = to_messages([USER, THOUGHT, CALL, OUTPUT], None)
    assert turn["reasoning_content"] == "hm"
    assert turn["tool_calls"] == [CALLED]
    (_, turn) = to_messages([USER, THOUGHT, SAID, {**THOUGHT, "content": None}, THOUGHT, CALL], None)
    assert turn["reasoning_content"] == "hm\nhm"


def test_thoughts_that_led_to_nothing_are_dropped() -> None:
    assert to_messages([THOUGHT, USER], None) == [USER]
    assert to_messages([USER, THOUGHT], None) == [USER]
    assert to_messages([USER, THOUGHT, {**USER, "content": "?"}, SAID], None)[2] == {
        "role": "assistant",
        "content": "I look",
    }


def test_summaries_stand_in_for_thoughts_and_encrypted_ones_are_dropped() -> None:
    summary = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "short"}]}
    assert to_messages([USER, summary, SAID], None)[1]["reasoning_content"] == "short"
    assert (
        "reasoning_content"
        not in to_messages([USER, {**THOUGHT, "content": [], "encrypted_content": "x"}, SAID], None)[1]
    )


def test_a_tools_output_may_be_parts() -> None:
    output = {**OUTPUT, "output": [{"type": "input_text", "text": "sunny"}, {"type": "input_text", "text": "hot"}]}
    assert to_messages([USER, CALL, output], None)[2]["content"] == "sunny\nhot"


@pytest.mark.parametrize(
    ("item", "param", "says"),
    [
        (5, "input.1", "object"),
        ({}, "input.1.role", "user, assistant, system, developer"),
        ({"role": "tool", "content": "x"}, "input.1.role", "user, assistant, system, developer"),
        ({"role": "user"}, "input.1.content", "text parts"),
        ({"role": "user", "content": 5}, "input.1.content", "text parts"),
        ({"role": "user", "content": ["x"]}, "input.1.content.0", "input_text"),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, "input.1.content.0", "input_text"),
        ({"role": "user", "content": [{"type": []}]}, "input.1.content.0", "input_text"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input.1.content.0.text", "string"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "input.1.content.0", "input_image"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}, "input.1.content.0", "input_file"),
        ({"id": "msg_1"}, "input.1", "stores nothing"),
        ({"type": "item_reference", "id": "msg_1"}, "input.1", "stores nothing"),
        ({"type": "web_search_call", "id": "ws_1"}, "input.1.type", "function_call_output"),
        ({"type": ["x"]}, "input.1.type", "function_call_output"),
        ({**CALL, "name": None}, "input.1.name", "string"),
        ({**CALL, "arguments": {}}, "input.1.arguments", "string"),
        ({**CALL, "call_id": 1}, "input.1.call_id", "string"),
        (OUTPUT, "input.1.call_id", "whole conversation"),
        ({"type": "reasoning", "summary": "x"}, "input.1.summary", "summary_text"),
        ({"type": "reasoning", "content": [{"type": "text", "text": "x"}]}, "input.1.content.0", "reasoning_text"),
        ({"type": "reasoning", "content": [{"type": "reasoning_text"}]}, "input.1.content.0.text", "string"),
    ],
)
def test_what_cannot_be_read_is_named(item: Any, param: str, says: str) -> None:
    with pytest.raises(ApiError) as refused:
        to_messages([USER, item], None)
    assert refused.value.status == 400
    assert refused.value.param == param
    assert says in refused.value.message
