import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.answer_parts import CallArguments, CallStart, Content, Part
from server.text.tool_calls import CallParser
from server.text.tool_forms import FORMS

NAMES = frozenset({"get_weather", "f"})
Calls = list[tuple[str, str]]


def read(form: str, pieces: Iterable[str], most_calls: int | None = None) -> list[Part]:
    parser: CallParser = FORMS[form](NAMES, most_calls)
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return parts + parser.finish()


def summed(parts: Iterable[Part]) -> tuple[str, Calls]:
    """All content, and each call's name and arguments; checks that calls come in order."""
    content, names, arguments = "", [], []
    for part in parts:
        match part:
            case Content(text):
                assert text
                content += text
            case CallStart(index, call_id, name):
                assert index == len(names)
                assert call_id
                names.append(name)
                arguments.append("")
            case CallArguments(index, text):
                assert text
                assert index == len(names) - 1
                arguments[index] += text
    return content, list(zip(names, arguments, strict=True))


def reading(form: str, text: str) -> tuple[str, Calls]:
    return summed(read(form, [text]))


HERMES = [
    ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", [("f", '{"a": 1}')]),
    ('Let me see.\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n', "Let me see.", [("f", "{}")]),
    (
        '<tool_call>{"name": "f", "arguments": {"a": [1]}}</tool_call>\n<tool_call>{"arguments": {"a": 2}, "name": '
        '"get_weather"}</tool_call>',
        "",
        [("f", '{"a": [1]}'), ("get_weather", '{"a": 2}')],
    ),
    ('a\n<tool_call>{"name": "f"}</tool_call>\nb\n', "a\n\nb", [("f", "{}")]),
    (
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>{"}}</tool_call>',
        "",
        [("f", '{"a": "</tool_call>{"}')],
    ),
    ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call> so', "so", [("f", '{"a": 1}')]),
    ('<tool_call>\n{{"name": "f", "arguments": {"a": {}}}}\n</tool_call>', "", [("f", '{"a": {}}')]),
    ('<tool_call>\n{{"name": "f", "arguments": {{"a": 1}}}}\n</tool_call>', "", [("f", '{"a": 1}')]),
    ('{"name": "f", "arguments": {"a": 1}}', "", [("f", '{"a": 1}')]),
    ('```json\n{"name": "f", "arguments": {"a": 1}}\n```\n', "", [("f", '{"a": 1}')]),
    (
        '```\n{"name": "f", "arguments": {}}```\n\n```json {"name": "f", "arguments": {"b": 2}}\n``` ok',
        "ok",
        [("f", "{}"), ("f", '{"b": 2}')],
    ),
    (
        '{"name": "f", "arguments": {}}\n{"name": "f", "arguments": {"b": 2}}',
        "",
        [("f", "{}"), ("f", '{"b": 2}')],
    ),
    ('<tool_call>{"name": "f", "arguments": {"a": "cut', "", [("f", '{"a": "cut')]),
]
LLAMA = [
    ('{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    ('<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    (
        '{"type": "function", "function": "f", "parameters": {}}; {"name": "f", "parameters": {"b": null}}',
        "",
        [("f", "{}"), ("f", '{"b": null}')],
    ),
    ('{"name": "f", "parameters": {}} done', "done", [("f", "{}")]),
]
MISTRAL = [
    ('[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]', "", [("f", '{"a": 1}')]),
    (
        'Yes.[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "123456789"}, {"name": "f", "arguments": {}}]',
        "Yes.",
        [("f", '{"a": 1}'), ("f", "{}")],
    ),
    ('[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]get_weather[ARGS]{}', "", [("f", '{"a": 1}'), ("get_weather", "{}")]),
    ('[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
    ('[TOOL_CALLS]f{"a": 1}', "", [("f", '{"a": 1}')]),
]
WELL = [
    (form, *case)
    for form, cases in (("hermes", HERMES), ("llama3_json", LLAMA), ("mistral", MISTRAL))
    for case in cases
]
NO_CALLS = [
    ("hermes", "<tool_call>\nnothing like JSON\n</tool_call>\n"),
    ("hermes", '  <tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": 5}</tool_call>'),
    ("hermes", "x < y and <tool"),
    ("hermes", '{"name": "f", "other": 1}'),
    ("hermes", '{"name": "f"}'),
    ("hermes", '```json\n{"rows": 1}\n```\n'),
    ("hermes", "```python\nprint()\n```"),
    ("hermes", "```json\n"),
    ("hermes", "``"),
    ("hermes", 'See:\n```json\n{"name": "f", "arguments": {}}\n```'),
    ("llama3_json", '{"answer": {"name": "f", "parameters": {}}}'),
    ("llama3_json", '{"name": "Paris", "parameters": {}}'),
    ("llama3_json", 'An object: {"name": "f", "parameters": {}}'),
    ("llama3_json", "<|python_tag|>print(1)\n"),
    ("mistral", '[TOOL_CALLS]no such[ARGS]{"a": 1}'),
    ("mistral", "[TOOL_CALLS] [1, 2]"),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS]f"),
    ("mistral", ""),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), WELL)
def test_calls_and_the_words_around_them_are_told_apart(form: str, text: str, content: str, calls: Calls) -> None:
    assert reading(form, text) == (content, calls)


@pytest.mark.parametrize(("form", "text"), NO_CALLS)
def test_what_only_looks_like_a_call_stays_content_in_full(form: str, text: str) -> None:
    assert reading(form, text) == (text, [])


FRAGMENTS = [
    *[text for _, text, _, _ in WELL],
    *[text for _, text in NO_CALLS],
    *[
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "{{",
        "}}",
        "{",
        "}",
        "[",
        "]",
        ",",
        ";",
        ":",
        "\\",
        "f",
    ],
    *['"name"', '"arguments"', '"parameters"', '"f"', '"', "\n", " ", "```json", "```", "words", "é🎉"],
]


@given(st.sampled_from(sorted(FORMS)), st.lists(st.sampled_from(FRAGMENTS), max_size=6), st.data())
def test_any_cutting_of_the_text_gives_the_same(form: str, fragments: list[str], data: st.DataObject) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = reading(form, text)
    assert summed(read(form, pieces)) == whole
    assert summed(read(form, text)) == whole
    if not whole[1]:
        assert whole[0] == text


@given(st.sampled_from(sorted(FORMS)), st.lists(st.sampled_from(FRAGMENTS), max_size=6))
def test_nothing_that_was_shown_has_to_be_taken_back(form: str, fragments: list[str]) -> None:
    """What is out after a beginning of the text is the beginning of what is out after all of it."""
    text = "".join(fragments)
    content, calls = reading(form, text)
    parser = FORMS[form](NAMES)
    shown: list[Part] = []
    for character in text:
        shown += parser.feed(character)
        said, called = summed(shown)
        assert content.startswith(said)
        assert len(called) <= len(calls)
        for (name, arguments), (final_name, final_arguments) in zip(called, calls, strict=False):
            assert name == final_name
            assert final_arguments.startswith(arguments)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=4), st.booleans(), st.sampled_from([None, 1, 3]))
def test_any_arguments_come_through_unchanged(
    arguments: dict[str, object], ascii_only: bool, indent: int | None
) -> None:
    shown = json.dumps(arguments, ensure_ascii=ascii_only, indent=indent)
    texts = {
        "hermes": f'<tool_call>\n{{"name": "f", "arguments": {shown}}}\n</tool_call>',
        "llama3_json": f'{{"name": "f", "parameters": {shown}}}',
        "mistral": f'[TOOL_CALLS][{{"name": "f", "arguments": {shown}}}]',
    }
    for form, text in texts.items():
        assert reading(form, text) == ("", [("f", shown)])
    doubled = f'<tool_call>\n{{{{"name": "f", "arguments": {{{shown}}}}}}}\n</tool_call>'
    if arguments:
        assert reading("hermes", doubled) == ("", [("f", shown)])


def test_arguments_are_passed_on_while_they_are_written() -> None:
    parser = FORMS["hermes"](NAMES)
    assert parser.feed('<tool_call>\n{"name": "f", "argum') == []
    (start, first) = parser.feed('ents": {"city": "Par')
    assert isinstance(start, CallStart)
    assert first == CallArguments(0, '{"city": "Par')
    assert parser.feed('is"') == [CallArguments(0, 'is"')]
    assert parser.feed("}") == [CallArguments(0, "}")]
    assert parser.feed("}\n</tool_call>") == parser.finish() == []


def test_words_are_passed_on_up_to_what_may_become_a_call() -> None:
    parser = FORMS["hermes"](NAMES)
    assert parser.feed("One two") == [Content("One two")]
    assert parser.feed(" x <to") == [Content(" x")]
    assert parser.feed("y>") == [Content(" <toy>")]


def test_an_answer_that_is_other_json_is_not_held_back() -> None:
    assert FORMS["hermes"](NAMES).feed('{"rows": [1, 2') == [Content('{"rows": [1, 2')]


def test_calls_beyond_the_most_are_left_out() -> None:
    text = "".join(f'<tool_call>{{"name": "f", "arguments": {{"a": {i}}}}}</tool_call>' for i in range(3))
    assert summed(read("hermes", [text, "end"], most_calls=1)) == ("end", [("f", '{"a": 0}')])


def test_ids_are_unique_and_have_the_length_that_mistrals_templates_ask_for() -> None:
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}]'
    ids = [part.id for part in read("mistral", [text]) if isinstance(part, CallStart)]
    assert len(set(ids)) == 2
    assert all(len(call_id) == 9 and call_id.isalnum() and call_id.isascii() for call_id in ids)
    hermes = read("hermes", ['<tool_call>{"name": "f", "arguments": {}}</tool_call>'])
    assert isinstance(hermes[0], CallStart)
    assert hermes[0].id.startswith("call_")
