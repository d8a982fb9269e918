"""What a loose block is expected to deliver, against a slow obvious count."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.forward_costs import ForwardCosts, RowCurve
from scheduler.draft_option import Option
from scheduler.loose_length import Ask, choose_block, expected_drafts
from scheduler.loose_lengths import choose_blocks

CHANCES = st.floats(0, 0.98)


@given(CHANCES, CHANCES, st.integers(1, 12), st.integers(0, 8), st.floats(0, 1))
def test_only_a_mismatch_with_its_window_in_the_block_may_be_forgiven(
    first: float, later: float, cap: int, window: int, loosening: float
) -> None:
    found = expected_drafts(Option("model", first, later, cap, 1.0), window, loosening)
    for length in range(cap + 1):
        expected, reach = 0.0, 1.0
        for draft in range(1, length + 1):
            right = first if draft == 1 else later
            reach *= right + (1 - right) * (loosening if draft <= length - window else 0.0)
            expected += reach
        assert found[length] == pytest.approx(expected)


def test_a_loose_block_ends_early_where_a_draft_is_worth_less_than_its_row_and_forward() -> None:
    costs = ForwardCosts(RowCurve({1: 100.0, 2: 110.0, 30: 390.0}), RowCurve({1: 30.0}))
    option = Option("model", 0.9, 0.9, 10, per_turn=1.0)
    choice, tokens, seconds = choose_block(costs, Ask(0, [option._replace(loosening=0.25)], window=0))
    assert choice.num_drafts > 1
    assert choice.min_reach == pytest.approx(tokens / seconds * (10 + 30))
    assert choice.min_guessed_reach == pytest.approx(tokens / seconds * (10 + 30 / 2))
    lookup, _, _ = choose_block(costs, Ask(0, [Option("prompt_lookup", 0.9, 0.9, 10, loosening=0.25)], window=0))
    assert (lookup.num_drafts > 1, lookup.min_reach) == (True, 0.0)  # its drafts cost no forward to be stopped before


def test_room_behind_a_mismatch_must_be_worth_what_ending_early_gains() -> None:
    """The same chances: as the rows become cheaper, a long block first pays, and only then pays enough."""
    option, long_ones = Option("model", 0.9, 0.93, 15, per_turn=1.0), []
    for per_row in (8.0, 4.0, 2.0, 1.0, 0.5, 0.1):
        costs = ForwardCosts(RowCurve({1: 100.0, 30: 100 + 29 * per_row}), RowCurve({1: 2 * per_row}))
        block, _, _ = choose_block(costs, Ask(0, [option], window=6))
        free, _, _ = choose_block(costs, Ask(0, [option], window=0))
        long_ones.append((free.num_drafts > 6, block.num_drafts > 6))
    assert long_ones == sorted(long_ones)
    assert {(False, False), (True, False), (True, True)} >= set(long_ones) >= {(True, False), (True, True)}


def test_where_many_share_the_machine_a_block_is_shorter_or_none() -> None:
    option = Option("model", 0.8, 0.85, 10, per_turn=1.0)
    costs = ForwardCosts(RowCurve({1: 100.0, 4: 110.0, 30: 370.0}), RowCurve({1: 20.0, 8: 25.0, 64: 150.0}))
    drafts = [
        choose_block(costs.times(company), Ask(0, [option._replace(loosening=0.2)], window=0)).choice.num_drafts
        for company in (1, 2, 4, 8, 16)
    ]
    assert drafts == sorted(drafts, reverse=True)
    assert drafts[0] > drafts[-1] == 0


def test_a_block_with_room_behind_a_mismatch_is_drafted_to_its_end() -> None:
    costs = ForwardCosts(RowCurve({1: 100.0, 2: 101.0, 30: 129.0}), RowCurve({1: 5.0}))
    option = Option("model", 0.9, 0.95, 15, per_turn=1.0)
    roomy, _, _ = choose_block(costs, Ask(0, [option._replace(loosening=0.5)], window=6))
    assert (roomy.num_drafts > 6, roomy.min_reach) == (True, 0.0)
    short, _, _ = choose_block(costs, Ask(0, [option._replace(cap=6, loosening=0.5)], window=6))
    assert (short.num_drafts > 0, short.min_reach > 0) == (True, True)


OPTIONS = st.lists(
    st.builds(
        Option,
        st.sampled_from(["model", "prompt_lookup"]),
        CHANCES,
        CHANCES,
        st.integers(1, 40),
        st.one_of(st.just(0.0), st.floats(1, 4)),
        loosening=st.floats(0, 1),
    ),
    max_size=3,
)
ASKS = st.builds(Ask, st.integers(1, 4000), OPTIONS, st.sampled_from([0, 3, 6, 6, 6, 20]))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(ASKS, max_size=12),
    st.floats(0.001, 1),
    st.floats(0, 0.01),
    st.one_of(st.none(), st.floats(0.001, 1)),
)
def test_many_blocks_weighed_together_are_to_the_bit_those_of_each_alone(
    asks: list[Ask], steepness: float, context: float, draft: float | None
) -> None:
    target = RowCurve({1: 1.0, 4: 1.0 + steepness, 16: 1.5 + 3 * steepness})
    costs = ForwardCosts(target, None if draft is None else RowCurve({1: draft, 8: 2 * draft}), per_position=context)
    assert choose_blocks(costs, asks) == [choose_block(costs, ask) for ask in asks]
