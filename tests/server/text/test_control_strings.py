from hypothesis import given
from hypothesis import strategies as st

from server.text.control_strings import ControlStrings, choose_sentinel, strings_in

CONTROLS = ControlStrings(["<s>", "<<s>>", "ss"], ["<t>"])
texts = st.lists(st.sampled_from(["<", "s", ">", "t", "x"]), max_size=14).map("".join)


@given(texts)
def test_no_piece_of_a_marked_text_holds_a_control_string(text: str) -> None:
    marked = CONTROLS.mark(text, "\u2063")
    assert marked.replace("\u2063", "") == text
    for piece in marked.split("\u2063"):
        assert not any(control in piece for control in CONTROLS.all)


@given(texts)
def test_text_without_control_strings_is_left_alone(text: str) -> None:
    if not any(control in text for control in CONTROLS.all):
        assert CONTROLS.mark(text, "\u2063") == text


def test_tags_are_broken_only_where_they_come_from_outside() -> None:
    assert CONTROLS.mark("a<t>b", "|", outside=True) == "a<|t>b"
    assert CONTROLS.mark("a<t>b", "|", outside=False) == "a<t>b"
    assert CONTROLS.mark("a<s>b", "|", outside=False) == "a<|s>b"


def test_everything_inside_a_message_is_marked() -> None:
    value = {"a<s>": [{"b": "<s>"}, 5, None, True], "c": "plain"}
    assert CONTROLS.mark(value, "|") == {"a<|s>": [{"b": "<|s>"}, 5, None, True], "c": "plain"}
    assert sorted(strings_in(value)) == ["<s>", "a<s>", "b", "c", "plain"]


def test_the_sentinel_is_not_in_the_text() -> None:
    first = choose_sentinel(["plain", "naïve"])
    assert len(first) == 1
    assert choose_sentinel(["x" + first]) != first
