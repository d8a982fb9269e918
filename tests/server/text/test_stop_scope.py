"""StopScope: stop strings act on words, not on thoughts or calls, however the answer is cut into tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.reasoning import THINK_TAGS
from server.text.stop_scope import StopScope
from server.text.stop_strings import StopAutomaton, StopCursor
from server.text.tool_forms import FORMS

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>\n"}}\n</tool_call>'


def scope(form: str | None = "hermes", thinks: bool = True, opened: bool = False) -> StopScope:
    return StopScope(FORMS[form] if form is not None else None, THINK_TAGS[0] if thinks else None, opened)


def stops_at(text: str, stop: str, scope: StopScope, size: int = 1) -> int | None:
    """Where the first stop string begins that ends the answer, if it comes in tokens of so many bytes."""
    cursor, data = StopCursor(StopAutomaton([stop.encode()]), scope), text.encode()
    for start in range(0, len(data), size):
        if cursor.feed(data[start : start + size]):
            assert cursor.match is not None
            return cursor.match[0]
    return None


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_stop_strings_act_on_words_alone(size: int) -> None:
    assert stops_at(f"So:{CALL}", "\n", scope(), size) is None
    assert stops_at(f"So:{CALL}\nmore", "\n", scope(), size) == len(f"So:{CALL}")
    assert stops_at(f"<think>\nwell\n</think>So:{CALL}", "\n", scope(), size) is None
    assert stops_at("well\n</think>So:\n", "\n", scope(opened=True), size) == len("well\n</think>So:")
    assert stops_at('[TOOL_CALLS]f[ARGS]{"a": "\n"}\n', "\n", scope("mistral"), size) is None
    assert stops_at("a <think> b\n", "\n", scope(None), size) == len("a <think> b")
    assert stops_at('{"rows":\n', "\n", scope(), size) == len('{"rows":')


def test_no_stop_string_reaches_across_markup() -> None:
    assert stops_at(f"a{CALL}b", "ab", scope(), 1000) is None
    assert stops_at(f"a{CALL}b", ">b", scope(), 1000) is None


def test_a_tag_in_one_token_is_markup_from_its_first_byte() -> None:
    assert stops_at(CALL, "<tool", scope(), len("<tool_call>")) is None
    assert stops_at("<think>so</think>", "<", scope(None), len("<think>")) is None
    assert stops_at("a <b", "<", scope(), 1000) == 2


PIECES = ["a", "<", "\n", "<tool_call>", "</tool_call>", "<think>", "</think>", '{"', '"}', "\\", "<tool_", "call>"]


@given(
    st.sampled_from([None, "hermes", "llama3_json"]),
    st.booleans(),
    st.lists(st.sampled_from(PIECES), max_size=12),
    st.sampled_from(["a", "aa", "\n", "a\n"]),
)
def test_tokens_that_are_passed_over_would_have_changed_nothing(
    form: str | None, opened: bool, pieces: list[str], stop: str
) -> None:
    """The walk piece by piece, which may pass over whole pieces, against one that looks at every byte."""
    automaton = StopAutomaton([stop.encode()])
    swift, slow = StopCursor(automaton, scope(form, opened=opened)), StopCursor(automaton, _Thorough(form, opened))
    for piece in pieces:
        assert swift.feed(piece.encode()) == slow.feed(piece.encode())
        assert (swift.match, swift.held) == (slow.match, slow.held)


class _Thorough(StopScope):
    def __init__(self, form: str | None, opened: bool) -> None:
        super().__init__(FORMS[form] if form is not None else None, THINK_TAGS[0], opened)

    def passes(self, data: bytes) -> bool:
        return False
