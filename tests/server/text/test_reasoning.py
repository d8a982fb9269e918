import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.answer_parts import Content, Part, Reasoning
from server.text.reasoning import THINK_TAGS, ReasoningSplitter

THINK, MISTRAL = THINK_TAGS


def split(pieces: list[str] | str, opened: bool = False, tags=THINK) -> tuple[str, str]:  # type: ignore[no-untyped-def]
    splitter = ReasoningSplitter(tags, opened)
    parts: list[Part] = [part for piece in pieces for part in splitter.feed(piece)] + splitter.finish()
    assert all(part.text for part in parts if isinstance(part, Content | Reasoning))
    thoughts = "".join(part.text for part in parts if isinstance(part, Reasoning))
    return thoughts, "".join(part.text for part in parts if isinstance(part, Content))


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        ("<think>\nhm, so\n</think>\n\nYes.\n", False, "hm, so", "Yes.\n"),
        ("hm\n\nso</think>Yes.", True, "hm\n\nso", "Yes."),
        ("\n<think></think>\n\nYes", False, "", "Yes"),
        ("No <think>tag</think> here", False, "", "No <think>tag</think> here"),
        ("<think>never ends\n", False, "never ends", ""),
        ("never ends </thi", True, "never ends </thi", ""),
        ("<think>a</think>b</think>c", False, "a", "b</think>c"),
        (" <thi", False, "", " <thi"),
        ("", True, "", ""),
        (" \n", False, "", " \n"),
    ],
)
def test_thoughts_are_taken_out_of_the_answer(text: str, opened: bool, reasoning: str, content: str) -> None:
    assert split([text], opened) == (reasoning, content)
    assert split(list(text), opened) == (reasoning, content)


def test_mistrals_tags_work_alike() -> None:
    assert split(["[THINK]a[/THI", "NK]b"], tags=MISTRAL) == ("a", "b")


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "think", ">", "\n", " ", "a", "é"])), st.booleans(), st.data()
)
def test_any_cutting_of_the_text_gives_the_same(fragments: list[str], opened: bool, data: st.DataObject) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(pieces, opened) == split([text], opened)


def test_thoughts_are_passed_on_while_they_are_thought() -> None:
    splitter = ReasoningSplitter(THINK, False)
    assert splitter.feed("<think>\nFirst ") == [Reasoning("First")]
    assert splitter.feed("this</thi") == [Reasoning(" this")]
    assert splitter.feed("nk>\n\nSo") == [Content("So")]
