"""What of an answer only says that it ends, with the server's own stop strings."""

from core.sequence import StopCondition
from server.audit.ending import MOST_TOKENS, ending_size
from server.text.stop_strings import StopAutomaton, StopStrings

TEXT = [b"one ", b"two", b".", b"\n", b"\n"]
NUMBERS = [0, 1, 2, 3, 4]


class Bytes:
    def __getitem__(self, token_id: int) -> bytes:
        return TEXT[token_id]


def stops(*strings: str) -> StopCondition:
    return StopStrings(StopAutomaton(string.encode() for string in strings), Bytes())  # type: ignore[arg-type]


def test_an_end_token_is_one() -> None:
    assert ending_size(NUMBERS, {4}, lambda: None) == 1
    assert ending_size(NUMBERS, {4}, lambda: stops("\n\n")) == 1


def test_a_stop_string_is_as_many_tokens_as_it_takes() -> None:
    assert ending_size(NUMBERS, set(), lambda: stops("\n\n")) == 2
    assert ending_size(NUMBERS, set(), lambda: stops(".\n\n")) == 3
    assert ending_size(NUMBERS, set(), lambda: stops("o.\n\n")) == 4  # a word that it takes a part of is gone too
    assert ending_size(NUMBERS[:3], set(), lambda: stops(".")) == 1


def test_of_an_ending_that_cannot_be_seen_from_behind_one_token_counts() -> None:
    assert ending_size([1] * 50, set(), lambda: stops("two" * (MOST_TOKENS + 1))) == 1
    assert ending_size(NUMBERS, set(), lambda: None) == 1
