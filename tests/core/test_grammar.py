"""Grammar: masks of tentative drafts against a fresh matcher's, and nothing left behind by what is rejected."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits

from core.grammar import Grammar, explore
from tests.grammars import (
    beginning,
    complete,
    grammar,
    ids_of,
    json_lark,
    legal_after,
    limited,
    regex_lark,
    text_of,
    unshared,
)
from tests.tiny import EOS, VOCAB

PERSON = json_lark(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["ab", "abc", "x"]}, "maxItems": 2},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
LARKS = {
    "json": PERSON,
    "regex": regex_lark("(ab|ba|0[0-9]*x)+"),
    "optional-end": regex_lark("[a-c]{2,5}"),
    "recursive": 'start: item\nitem: "[" (item ("," item)*)? "]" | /[0-9]+/',
    "one-way": 'start: "abc" "10"',
    "counted": "start: word+\nword[max_tokens=3]: /[a-z]+ ?/",
    "named-token": 'start: <[1]> "ab" <[0]>',
    "lazy": 'start: text "!"\ntext[lazy]: /[a-z ]*z/',
}


def tokens_of(mask: np.ndarray) -> set[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[VOCAB:].any()
    return set(np.flatnonzero(bits).tolist())


def random_drafts(rng: random.Random, lark: str, taken: list[int]) -> list[int]:
    """Mostly legal, so that paths grow long; here and there a token that may be anything."""
    drafts: list[int] = []
    for _ in range(rng.randint(0, 6)):
        legal = legal_after(lark, taken + drafts)
        anything = not legal or rng.random() < 0.15
        drafts.append(rng.randrange(VOCAB) if anything else rng.choice(sorted(legal)))
    return drafts


def check_masks(place: Grammar, lark: str, taken: list[int], drafts: list[int], count: int) -> None:
    rows = place.masks(drafts, count)
    first = len(drafts) + 1 - count
    assert len(rows) == count
    for index, row in enumerate(rows):
        before = drafts[: first + index]
        if EOS in before:
            break  # the answer has ended: void
        want = legal_after(lark, taken + before)
        if want is None:
            break  # an illegal draft: void
        assert tokens_of(row) == want, (text_of(taken), before, index)


@settings(deadline=None, max_examples=120)
@given(st.sampled_from(sorted(LARKS)), st.integers(0, 10**9))
def test_masks_are_a_fresh_matchers_whatever_was_asked_before(name: str, seed: int) -> None:
    """Drafts of any kind, asked about in any order, partly delivered, and questions repeated."""
    rng, lark, taken = random.Random(seed), LARKS[name], []
    place = grammar(lark)
    for _ in range(8):
        for _ in range(rng.randint(1, 3)):
            drafts = random_drafts(rng, lark, taken)
            check_masks(place, lark, taken, drafts, rng.randint(1, len(drafts) + 1))
            legal = place.legal(drafts)
            ends = drafts.index(EOS) + 1 if EOS in drafts else len(drafts)
            want = 0
            while want < ends and drafts[want] in (legal_after(lark, taken + drafts[:want]) or ()):
                want += 1
            assert legal == want
        delivered = drafts[: rng.randint(0, legal)]
        if not delivered or rng.random() < 0.3:
            delivered += [rng.choice(sorted(legal_after(lark, taken + delivered)))] if EOS not in delivered else []
        for token in delivered:
            assert place.push(token)
            if token == EOS and legal_after(lark, [*taken, token]) is None:
                assert place.finished
                assert complete(lark, taken)
                return
            taken.append(token)
            if place.finished:
                assert complete(lark, taken)
                assert legal_after(lark, taken) == {EOS}
                return


def test_rejected_drafts_leave_no_trace() -> None:
    place = grammar(PERSON)
    for token in ids_of('{"name":'):
        place.push(token)
    before = place.masks([], 1).copy()
    assert place.legal(ids_of('"abc","age":10}')) == len(ids_of('"abc","age":10}'))
    assert place.legal(ids_of('"ab"}')) < len(ids_of('"ab"}'))  # age is missing
    assert np.array_equal(place.masks([], 1), before)


def test_a_forbidden_token_is_refused_and_changes_nothing() -> None:
    place = grammar(LARKS["regex"])
    assert place.push(ids_of("ab")[0])
    assert not place.push(ids_of("{")[0])
    assert place.failure
    assert place.push(ids_of("ba")[0])


def test_the_last_token_of_a_complete_answer_finishes_it() -> None:
    place = grammar(LARKS["one-way"])
    first, second = ids_of("abc"), ids_of("10")
    assert [place.push(token) for token in (*first, *second)] == [True, True]
    assert place.finished


def test_an_end_token_finishes_an_answer_that_could_go_on() -> None:
    place = grammar(LARKS["optional-end"])
    place.push(ids_of("ab")[0])
    assert not place.finished
    assert place.push(EOS)
    assert place.finished


def test_an_end_token_before_the_answer_is_complete_is_refused() -> None:
    assert not grammar(LARKS["optional-end"]).push(EOS)


def test_a_stop_token_that_is_text_is_ruled_by_the_grammar() -> None:
    """`closing` never holds one: behind a complete answer it would add text."""
    stop = ids_of("b")[0]
    place = grammar(LARKS["optional-end"], closing=())
    for text in "ab":
        place.push(ids_of(text)[0])
    assert stop in tokens_of(place.masks([], 1)[0])
    assert EOS not in tokens_of(place.masks([], 1)[0])


def test_without_end_tokens_eos_ends_only_what_cannot_go_on() -> None:
    lark = 'start: "ab" tail\ntail: /x?/'
    place = grammar(lark, closing=())
    place.push(ids_of("ab")[0])
    assert tokens_of(place.masks([], 1)[0]) == set(ids_of("x"))
    place.push(ids_of("x")[0])
    assert place.finished or tokens_of(place.masks([], 1)[0]) == {EOS}


def test_barred_tokens_come_back_where_nothing_else_is_left() -> None:
    place = grammar(LARKS["optional-end"])
    drafts = [ids_of(character)[0] for character in "aabbc"]
    bits = [tokens_of(row) for row in place.masks(drafts, 6, barred=6, barred_ids=[EOS])]
    assert all(EOS not in row for row in bits[:5])
    assert bits[5] == {EOS}  # five letters are all there may be
    assert EOS in tokens_of(place.masks(drafts, 6, barred=2, barred_ids=[EOS])[3])


def test_a_dead_end_forbids_everything() -> None:
    place = grammar('start: "ab" /[0-9]é/')  # no token holds that letter
    for text in ("ab", "1"):
        assert place.push(ids_of(text)[0])
    assert tokens_of(place.masks([], 1)[0]) == set()
    assert not place.push(ids_of("1")[0])
    assert not place.push(EOS)
    assert place.failure


def test_a_limit_met_behind_rejected_drafts_is_forgotten() -> None:
    """A matcher that ran into a limit never recovers; the sequence's place, which is before that, does."""
    lark = 'start: some\nsome: some some | "x" | "[" some "]"'  # ambiguous: ever more ways to read it
    limits = LLParserLimits(step_max_items=40)
    place = limited(lark, limits)
    x, bracket = ids_of("x")[0], ids_of("[")[0]
    masks = [tokens_of(row) for row in place.masks([x] * 20, 21) if row[0] != -1]
    assert masks[0] == {x, bracket}
    assert 1 < len(masks) < 21
    assert all(masks)  # behind the limit nothing is known, and no draft may lead there
    assert place.legal([x] * 20) == len(masks) - 1
    assert place.push(x)
    assert place.push(bracket)
    check_masks(place, lark, [x, bracket], [x], 2)


def test_an_answer_that_runs_into_a_limit_fails_with_its_reason() -> None:
    lark = 'start: some\nsome: some some | "ab" | "x"'
    limits = LLParserLimits(step_max_items=60, verbose_errors=False)
    place = limited(lark, limits)
    x = ids_of("x")[0]
    pushed = 0
    while place.push(x):
        pushed += 1
        assert pushed < 100
    assert "Too many items" in str(place.failure)
    assert "<" not in str(place.failure)


def test_a_batch_explores_as_each_alone() -> None:
    rng = random.Random(5)
    names = sorted(LARKS) * 3
    places = [grammar(LARKS[name]) for name in names]
    drafts = [random_drafts(rng, LARKS[name], []) for name in names]
    explore(zip(places, drafts, strict=True))
    for name, place, mine in zip(names, places, drafts, strict=True):
        check_masks(place, LARKS[name], [], mine, len(mine) + 1)


def test_places_made_from_one_beginning_are_independent() -> None:
    one, other = grammar(PERSON), grammar(PERSON)
    for token in ids_of('{"name":"a"'):
        one.push(token)
    check_masks(other, PERSON, [], [], 1)
    assert beginning(PERSON).compute_bitmask()[0] >= 0


MANY_STATES = regex_lark("(a|b|c)*a(a|b|c){7}")
"""Every eight letters in another order are another state."""


def test_what_others_filled_a_shared_matcher_with_changes_no_answer() -> None:
    rng, limits = random.Random(7), LLParserLimits(max_lexer_states=100, verbose_errors=False)
    shared = unshared(MANY_STATES, limits)
    for _ in range(20):
        place, taken = limited(MANY_STATES, limits, shared), list[int]()
        for _ in range(5):
            check_masks(place, MANY_STATES, taken, [], 1)
            taken.append(rng.choice(sorted(legal_after(MANY_STATES, taken) - {EOS})))
            assert place.push(taken[-1]), place.failure
    assert not shared.deep_copy().consume_tokens(taken)  # none could use it any more


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**9))
def test_drafts_that_meet_a_limit_change_no_answer(seed: int) -> None:
    """What is drafted fills the matcher; what is delivered is legal all the same, each token of it, as without."""
    rng = random.Random(seed)
    limits = LLParserLimits(max_lexer_states=rng.randint(60, 200), verbose_errors=False)
    with_drafts, without, taken = limited(MANY_STATES, limits), limited(MANY_STATES, limits), list[int]()
    for _ in range(12):
        drafts = random_drafts(rng, MANY_STATES, taken)
        rows = with_drafts.masks(drafts, len(drafts) + 1)
        legal = with_drafts.legal(drafts)
        assert np.array_equal(with_drafts.masks(drafts, len(drafts) + 1), rows)
        alone = without.masks([], 1)[0]
        assert np.array_equal(rows[0], alone)
        able = sorted(tokens_of(alone) - {EOS})
        delivered = drafts[: rng.randint(0, legal)] or [rng.choice(able)]
        if EOS in delivered:
            return
        for token in delivered:
            assert with_drafts.push(token) == without.push(token) is True, (with_drafts.failure, without.failure)
            taken.append(token)
        if with_drafts.finished or without.finished:
            assert with_drafts.finished == without.finished
            return
