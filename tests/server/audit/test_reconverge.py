"""Re-convergence: the examples of its definition, and the walk against a search through all pairs of places."""

from hypothesis import given
from hypothesis import strategies as st

from server.audit.reconverge import MOST_SHIFT, RUN, reconverges

TEXT = list(range(100, 160))


def obvious(delivered: list[int], own: list[int], within: int, ended: bool) -> bool:
    """Neither text with what ends it. ended: both answers ended by themselves behind these tokens."""
    behind = delivered[1:]
    for a in range(min(within + 1, len(delivered))):
        for b in range(min(within + 1, len(own) + 1)):
            if abs(a - b) > MOST_SHIFT:
                continue
            if len(delivered) - a >= RUN and delivered[a : a + RUN] == own[b : b + RUN]:
                return True
            if ended and a == 1 and 1 <= len(behind) < RUN and own[b:] == behind:
                return True
    return False


few = st.lists(st.integers(0, 2), max_size=24)


@given(few, few, st.integers(1, 12), st.booleans())
def test_the_walk_finds_what_a_search_finds(delivered: list[int], own: list[int], within: int, ended: bool) -> None:
    assert reconverges(delivered, own, within, ended) == obvious(delivered, own, within, ended)


@given(few, few, st.integers(0, 14), st.integers(0, 14), st.integers(1, 12), st.booleans())
def test_the_walk_finds_what_a_search_finds_where_texts_meet(
    delivered: list[int], own: list[int], before: int, behind: int, within: int, ended: bool
) -> None:
    meeting = list(range(10, 10 + before))
    one, other = delivered[:14] + meeting, own[: 14 + behind] + meeting
    assert reconverges(one, other, within, ended) == obvious(one, other, within, ended)


def test_another_word_of_the_same_length_is_back_at_once() -> None:
    assert reconverges([1, *TEXT], [2, *TEXT], 32, False)


def test_a_longer_way_round_is_back_too() -> None:
    assert reconverges([1, *TEXT], [2, 3, 4, *TEXT], 32, False)
    assert reconverges([1, 2, 3, 4, *TEXT], [5, *TEXT], 32, False)


def test_a_text_that_goes_elsewhere_is_not_back() -> None:
    assert not reconverges([1, *TEXT], [2, *reversed(TEXT)], 32, False)


def test_seven_equal_tokens_are_no_run() -> None:
    assert not reconverges([1, *TEXT[:7], 3, 4, 5], [2, *TEXT[:7], 6, 7, 8], 32, False)
    assert reconverges([1, *TEXT[:8], 3, 4, 5], [2, *TEXT[:8], 6, 7, 8], 32, False)


def test_the_run_must_begin_in_time_in_both() -> None:
    late = [9] * 5
    assert reconverges([*late, *TEXT], [*[8] * 5, *TEXT], 5, False)
    assert not reconverges([*late, *TEXT], [*[8] * 5, *TEXT], 4, False)
    assert not reconverges([1, *TEXT], [*[8] * 5, *TEXT], 4, False)


def test_a_long_shift_is_a_repetition_rather_than_a_return() -> None:
    assert reconverges([1, *TEXT], [*[2] * (1 + MOST_SHIFT), *TEXT], 32, False)
    assert not reconverges([1, *TEXT], [*[2] * (2 + MOST_SHIFT), *TEXT], 32, False)


def test_near_the_end_all_that_is_left_must_be_left_of_the_targets_text_too() -> None:
    assert reconverges([1, *TEXT[:3]], [2, *TEXT[:3]], 32, ended=True)
    assert reconverges([1, *TEXT[:3]], [2, 3, *TEXT[:3]], 32, ended=True)
    assert reconverges([1, *TEXT[:3]], TEXT[:3], 32, ended=True)  # the target leaves the word out
    assert not reconverges([1, *TEXT[:3]], [2, *TEXT[:3]], 32, ended=False)
    assert not reconverges([1, *TEXT[:3]], [2, *TEXT[:4]], 32, ended=True)
    assert not reconverges([1, *TEXT[:3]], [2, *TEXT[1:3]], 32, ended=True)


def test_to_end_as_well_is_not_to_be_back() -> None:
    assert not reconverges([1], [2], 32, ended=True)
    assert not reconverges([1], [3, 1], 32, ended=True)
    assert not reconverges([*range(100, 112)], [*range(200, 209)], 32, ended=True)
    assert not reconverges([1, *TEXT[:8]], [2, 3, *TEXT[1:8]], 32, ended=True)  # seven are no run: there is room for 8


@given(st.integers(0, 40), st.integers(0, 40), st.booleans())
def test_texts_without_a_common_token_are_never_back(one: int, other: int, ended: bool) -> None:
    assert not reconverges(list(range(100, 101 + one)), list(range(200, 201 + other)), 32, ended)
