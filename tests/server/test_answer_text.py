"""What is shown piece by piece, against the whole text cut afterwards."""

from hypothesis import given
from hypothesis import strategies as st

from core.provenance import FinishReason, Provenance
from core.sequence import CommittedToken
from server.answer_text import AnswerText
from server.text.stop_strings import StopAutomaton
from server.text.token_bytes import TokenBytes

VOCABULARY = TokenBytes([b"a", b"b", b"ab", "é".encode()[:1], "é".encode()[1:], "🎉".encode(), b"", b"ba b"])
STOPS = ["ab", "b b", "é"]
rounds = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=5), max_size=6)


def committed(token_ids: list[int]) -> list[CommittedToken]:
    return [CommittedToken(token, Provenance.TARGET) for token in token_ids]


def cut_at_first_stop(token_ids: list[int], show_stop: bool) -> tuple[int, int | None]:
    """How many tokens are delivered, and where the text is cut, by looking at everything after every token."""
    data = b""
    for count, token in enumerate(token_ids, 1):
        known, data = len(data), data + VOCABULARY[token]
        ends = [
            (end, -len(stop), end - len(stop))
            for stop in (text.encode() for text in STOPS)
            for end in range(known + 1, len(data) + 1)
            if data[:end].endswith(stop)
        ]
        if ends:
            end, _, start = min(ends)
            return count, end if show_stop else start
    return len(token_ids), None


@given(rounds, st.booleans())
def test_pieces_are_the_text_up_to_the_stop_string(pieces: list[list[int]], show_stop: bool) -> None:
    every = [token for piece in pieces for token in piece]
    delivered, cut = cut_at_first_stop(every, show_stop)
    stops = StopAutomaton(text.encode() for text in STOPS)
    answer = AnswerText(VOCABULARY, stops, keep_tokens=True, show_stop=show_stop)
    shown, listed, left = "", [], delivered
    for piece in pieces:
        if taken := piece[: max(0, left)]:
            left -= len(taken)
            step = answer.push(committed(taken))
            shown, listed = shown + step.text, listed + list(step.tokens)
    data = b"".join(VOCABULARY[token] for token in every[:delivered])
    if cut is not None:
        assert data[:cut].decode("utf-8", "replace").startswith(shown)
    last = answer.finish(FinishReason.STOP if cut is not None else FinishReason.LENGTH)
    shown, listed = shown + last.text, listed + list(last.tokens)
    whole = data.decode("utf-8", "replace") if cut is None else data[:cut].decode("utf-8", "replace")
    if cut is None and data.endswith("é".encode()[:1]):
        whole = whole[:-1]  # half a character at the end is dropped
    assert shown == whole
    assert [entry.token.token_id for entry in listed] == every[:delivered]


@given(rounds)
def test_tokens_come_with_their_text(pieces: list[list[int]]) -> None:
    answer = AnswerText(VOCABULARY, None, keep_tokens=True)
    seen: list[int] = []
    for piece in pieces:
        step = answer.push(committed(piece))
        assert [entry.token.token_id for entry in step.tokens] == piece
        for entry in step.tokens:
            before = b"".join(VOCABULARY[token] for token in seen)
            # A half character at the end does not count yet.
            complete = before.decode("utf-8", "replace")
            if before.endswith("é".encode()[:1]):
                complete = complete[:-1]
            assert entry.text_offset == len(complete)
            seen.append(entry.token.token_id)


def test_a_match_that_did_not_end_the_answer_is_shown() -> None:
    answer = AnswerText(VOCABULARY, StopAutomaton([b"ab"]), keep_tokens=False)
    assert answer.push(committed([2])).text == ""
    assert answer.push(committed([5])).text == "ab🎉"
    assert answer.push(committed([2])).text == ""
    assert answer.finish(FinishReason.LENGTH).text == "ab"


def test_a_stop_string_that_is_shown_holds_nothing_back() -> None:
    answer = AnswerText(VOCABULARY, StopAutomaton([b"ab"]), keep_tokens=False, show_stop=True)
    assert answer.push(committed([0])).text == "a"
    assert answer.push(committed([1])).text == "b"


def test_an_end_token_at_the_same_place_as_a_prefix_flushes_it() -> None:
    answer = AnswerText(VOCABULARY, StopAutomaton([b"abc"]), keep_tokens=False)
    assert answer.push(committed([2, 6])).text == ""
    assert answer.finish(FinishReason.STOP).text == "ab"


def test_a_character_broken_by_a_stop_string_shows_as_broken() -> None:
    answer = AnswerText(VOCABULARY, StopAutomaton([b"ab"]), keep_tokens=False)
    assert answer.push(committed([1, 3, 2])).text == "b"
    assert answer.finish(FinishReason.STOP).text == "\ufffd"
