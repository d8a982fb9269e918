"""The rule against a slow obvious one: every combination tried."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.forward_costs import ForwardCosts, RowCurve
from scheduler.draft_length import choose_drafts
from scheduler.draft_option import Base, Choice, Option, base_seconds

DEMO = ForwardCosts(RowCurve({1: 100, 4: 110, 8: 150, 16: 220, 32: 380}), RowCurve({1: 30, 8: 40}))
"""In proportion what a 1.5B target and a 0.5B draft take on a CPU: up to four rows hardly more than one."""


def lookup(first: float, later: float = 0.9, cap: int = 10) -> Option:
    return Option("prompt_lookup", first, later, cap)


def model(first: float, later: float | None = None, cap: int = 10, per_turn: float = 1.0) -> Option:
    return Option("multilevel", first, first if later is None else later, cap, per_turn)


def alone(*options: Option, costs: ForwardCosts = DEMO) -> Choice:
    return choose_drafts(costs, Base(1, 1, 1, 100), [options]).choices[0]


def together(options: list[list[Option]], costs: ForwardCosts = DEMO) -> list[Choice]:
    return list(choose_drafts(costs, Base(len(options), len(options), len(options), 100), options).choices)


def rate_of(costs: ForwardCosts, base: Base, drafts: tuple[tuple[Option | None, int], ...]) -> float:
    """Expected tokens per second of a round, draft by draft and step by step."""
    tokens, rows, lags, steps = base.tokens, base.rows, 0.0, dict(enumerate(base.draft_rows))
    for option, count in drafts:
        rows += count
        tokens += sum(option.first * option.later**s for s in range(count)) if option else 0.0
        if option and option.per_turn:
            lags += option.lag
            for turn in range(math.ceil(count / option.per_turn - 1e-9)):
                steps[turn] = steps.get(turn, 0.0) + option.turn_rows
    seconds = costs.verify(rows, base.sequences, base.positions)
    seconds += sum(costs.draft.at(fed) for fed in steps.values()) if costs.draft else 0.0
    return tokens / (seconds + lags) if seconds <= base.most_seconds else 0.0


CHANCES = st.floats(0, 0.98)
OPTIONS = st.lists(
    st.one_of(
        st.builds(lookup, CHANCES, CHANCES, st.integers(0, 4)),
        st.builds(
            Option,
            st.just("multilevel"),
            CHANCES,
            CHANCES,
            st.integers(1, 4),
            st.sampled_from([1.0, 1.5, 2.0, 3.0]),
            st.sampled_from([0.0, 5.0, 40.0]),
        ),
    ),
    max_size=2,
)
COSTS = st.builds(
    lambda one, four, slope, draft, eight: ForwardCosts(
        RowCurve({1: one, 4: one + four, 8: one + four + 4 * slope, 32: one + four + 28 * slope}),
        RowCurve({1: draft, 8: draft + eight}),
    ),
    st.floats(50, 200),
    st.floats(0, 100),
    st.floats(1, 60),
    st.floats(2, 100),
    st.floats(0, 60),
)


@settings(deadline=None, max_examples=100)
@given(COSTS, st.lists(OPTIONS, min_size=1, max_size=2), st.sampled_from([1.0, 1.3, 1e9]))
def test_it_promises_what_it_delivers_and_comes_near_the_best_of_all(
    costs: ForwardCosts, options: list[list[Option]], stretch: float
) -> None:
    """Alone it is the best of all; together D's shares make the ranking a good guess, never worse than no drafts."""
    count = len(options)
    base = Base(float(count), count, count, 50)
    base = base._replace(most_seconds=stretch * base_seconds(costs, base) * (1 + 1e-12))
    verdict = choose_drafts(costs, base, options)
    taken = tuple((choice.option, choice.num_drafts) for choice in verdict.choices)
    assert verdict.rate == pytest.approx(rate_of(costs, base, taken))
    for choice, mine in zip(verdict.choices, options, strict=True):
        assert choice.option is None or choice.option in mine
        assert choice.num_drafts <= (choice.option.cap if choice.option else 0)
    every = [[(None, 0)] + [(one, k) for one in mine for k in range(1, one.cap + 1)] for mine in options]
    best = max(rate_of(costs, base, drafts) for drafts in itertools.product(*every))
    assert verdict.rate >= rate_of(costs, base, ((None, 0),) * count) * (1 - 1e-9)
    assert verdict.rate >= best * (1 - 1e-9 if sum(bool(mine) for mine in options) == 1 else 0.75)


def test_a_draft_model_that_there_is_no_time_for_does_not_keep_lookup_from_drafting() -> None:
    costs = ForwardCosts(RowCurve({1: 50.0, 4: 50.0}), RowCurve({1: 2.0}))
    base = Base(1.0, 1, 1, 0, most_seconds=50.0)
    by_lookup, by_model = Option("prompt_lookup", 0.25, 0.0, 1), Option("multilevel", 0.5, 0.0, 1, 1.0)
    verdict = choose_drafts(costs, base, [[by_lookup, by_model]])
    assert verdict.choices[0][:2] == (by_lookup, 1)
    assert verdict.rate == pytest.approx(1.25 / 50)


def test_the_worked_example_of_the_docs() -> None:
    choice = alone(model(0.8))
    assert (choice.option, choice.num_drafts) == (model(0.8), 3)
    assert choice.min_reach == pytest.approx(2.952 / 200 * (30 + 10))
    assert choice.min_guessed_reach == pytest.approx(2.952 / 200 * (30 / 2 + 10))
    assert alone(model(0.3)) == Choice()
    assert alone(lookup(0.4, 0.8)).num_drafts == 4  # rows that cost next to nothing
    verdict = together([[model(0.8)]] * 16)
    assert {choice.num_drafts for choice in verdict} == {0}


def test_of_two_drafters_the_better_one_is_taken() -> None:
    sure, unsure = lookup(0.9, 0.95), lookup(0.2, 0.5)
    assert alone(sure, model(0.9)).option == sure
    assert alone(unsure, model(0.9)).option == model(0.9)


def test_more_company_never_lengthens_a_lookup() -> None:
    lengths = []
    for count in (1, 2, 4, 8, 16, 32, 64):
        lengths.append(max(choice.num_drafts for choice in together([[lookup(0.6, 0.8)]] * count)))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] >= 3
    assert lengths[-1] <= 1


def test_a_bound_on_the_rounds_time_is_kept() -> None:
    base = Base(2, 2, 2, 0, most_seconds=150)
    verdict = choose_drafts(DEMO, base, [[model(0.95)], []])
    assert verdict.seconds <= 150
    assert 0 < verdict.choices[0].num_drafts < alone(model(0.95)).num_drafts


def test_a_draft_model_that_lags_must_be_worth_reading_the_text() -> None:
    near, far = model(0.75), model(0.75)._replace(lag=500.0)
    assert alone(near).num_drafts > 0
    assert alone(far).num_drafts == 0


def test_drafts_that_are_there_anyway_share_their_steps() -> None:
    busy = Base(5, 6, 2, 0, draft_rows=(1.0,) * 5)
    shared = choose_drafts(DEMO, busy, [[model(0.55)]]).choices[0]
    assert shared.num_drafts > alone(model(0.55)).num_drafts
