"""CallSpans against an oracle that looks at the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from server.text.answer_parts import CallArguments
from server.text.chat_format import AnswerReading
from server.text.reasoning import THINK_TAGS
from server.text.token_bytes import TokenBytes
from server.text.tool_forms import FORMS
from server.text.tool_spans import CallSpans, SpanRules

PIECES = ["a", " ", "\n", "{", "}", "<", "<tool", "_call>", "<tool_call>", "</tool_call>", "</", "</think>", "x<"]
PIECES += ["```", "json", "``", "python"]
PIECES += ["[TOOL_CALLS]", "[TOOL", "_CALLS]", "<|python_tag|>", ""]
TABLE = TokenBytes([piece.encode() for piece in PIECES])
IDS = {piece: index for index, piece in enumerate(PIECES)}


def spans(form: str = "hermes", reasoning: bool = True) -> CallSpans:
    return CallSpans(SpanRules.of(FORMS[form], THINK_TAGS[0] if reasoning else None), TABLE)


def flags(pieces: list[str], form: str = "hermes") -> list[bool]:
    tokens = [IDS[piece] for piece in pieces]
    return spans(form).protected(tokens, tokens)


def test_a_call_is_protected_from_its_first_tag_to_its_last() -> None:
    assert flags(["a", "<tool_call>", "a", "{", "a", "</tool_call>", "a"]) == [False, *[True] * 5, False]


def test_a_tag_in_several_tokens_is_protected_from_its_first_character() -> None:
    assert flags(["a", "x<", "a"]) == [False, True, True]
    assert flags(["a", "<tool", "_call>", "a", "</", "a"]) == [False, True, True, True, True, True]


def test_a_brace_that_begins_the_answer_or_follows_the_thoughts_begins_a_call() -> None:
    assert flags(["\n", "{", "a"]) == [False, True, True]
    assert flags(["a", "{", "a"]) == [False, False, False]
    assert flags(["a", "</think>", "\n", "{", "a"])[-3:] == [False, True, True]
    assert flags(["```", "json", "\n", "{", "a"]) == [True] * 5
    assert flags(["```", "python", "\n", "{", "a"]) == [True, True, False, False, False]
    assert flags(["{", "a"], "mistral") == [False, False]


def test_a_call_without_a_closing_tag_lasts_to_the_end() -> None:
    assert flags(["a", "[TOOL_CALLS]", "a", "\n", "a"], "mistral") == [False, True, True, True, True]
    assert flags(["<|python_tag|>", "a"], "llama3_json") == [True, True]


def test_where_the_target_would_begin_a_call_no_other_draft_is_loosened() -> None:
    a, call = IDS["a"], IDS["<tool_call>"]
    assert spans().protected([a, a], [call, a]) == [True, False]


@given(
    st.sampled_from(sorted(FORMS)),
    st.lists(st.sampled_from(range(len(PIECES))), max_size=8),
    st.lists(st.tuples(*[st.sampled_from(range(len(PIECES)))] * 2), max_size=8),
)
def test_drafts_change_nothing_and_are_judged_like_delivered_tokens(
    form: str, delivered: list[int], block: list[tuple[int, int]]
) -> None:
    tracker = spans(form)
    for token in delivered:
        tracker.push(token)
    drafts, choices = [draft for draft, _ in block], [choice for _, choice in block]
    flags = tracker.protected(drafts, choices)
    assert tracker.protected(drafts, choices) == flags
    for index, (draft, choice) in enumerate(block):
        step_by_step = spans(form)
        for token in [*delivered, *drafts[:index]]:
            step_by_step.push(token)
        assert step_by_step.protected([draft], [choice]) == [flags[index]]


def test_a_second_call_that_nothing_announces_is_protected_like_the_first() -> None:
    assert flags(["{", "a", "}", "</tool_call>", "\n", "{", "a"]) == [*[True] * 4, False, True, True]
    assert flags(["{", "}", "</tool_call>", "a", "{", "a"])[3:] == [False] * 3


CALL_PIECES = ['{"name": "f", "arguments": {"a": "', "x", '"}}', '"', "\\", "{", "}", " ", "\n", "```", "json"]
CALL_PIECES += ["<tool_call>", "</tool_call>", "</think>", "<|python_tag|>", "; ", "<tool", "_call>"]
CALL_TABLE = TokenBytes([piece.encode() for piece in CALL_PIECES])


@given(
    st.sampled_from(["hermes", "llama3_json"]),
    st.booleans(),
    st.lists(st.sampled_from(range(len(CALL_PIECES))), max_size=16),
)
def test_no_argument_of_a_call_is_written_unprotected(form: str, thinks: bool, tokens: list[int]) -> None:
    reasoning = THINK_TAGS[0] if thinks else None
    tracker = CallSpans(SpanRules.of(FORMS[form], reasoning), CALL_TABLE)
    parser = AnswerReading(reasoning, opened=thinks, form=FORMS[form], names=frozenset("f")).parser()
    for token, protected in zip(tokens, tracker.protected(tokens, tokens), strict=True):
        parts = parser.feed(CALL_PIECES[token])
        assert protected or not any(isinstance(part, CallArguments) for part in parts), parts
