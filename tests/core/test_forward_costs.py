from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.drafters.base import DraftStep
from core.forward_costs import ForwardCosts, LiveCosts, RowCurve

CURVES = st.dictionaries(st.integers(1, 64), st.floats(0.01, 10), min_size=1, max_size=6).map(RowCurve)


def test_straight_lines_between_points_and_the_last_slope_behind_them() -> None:
    curve = RowCurve({1: 0.1, 4: 0.1, 8: 0.3})
    assert [curve.at(rows) for rows in (0, 1, 2, 4, 6, 8, 10)] == pytest.approx([0, 0.1, 0.1, 0.1, 0.2, 0.3, 0.4])


def test_one_point_stands_for_a_cost_in_proportion() -> None:
    assert RowCurve({4: 0.2}).at(8) == pytest.approx(0.4)


@given(CURVES, st.integers(0, 200), st.integers(0, 200))
def test_more_rows_never_cost_less(curve: RowCurve, one: int, other: int) -> None:
    assert curve.at(min(one, other)) <= curve.at(max(one, other))


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {1: 0.0}, {2: -1.0}])
def test_points_must_make_sense(points: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        RowCurve(points)


@given(CURVES, st.integers(1, 64), st.floats(0.6, 1.7))
def test_a_curve_comes_to_say_what_is_seen_again_and_again(curve: RowCurve, rows: int, factor: float) -> None:
    """Within what was measured; behind it the slope of the last two points would swing."""
    rows = min(rows, curve.largest)
    seen = curve.at(rows) * factor
    for _ in range(300):
        curve = curve.corrected(rows, seen / curve.at(rows))
    assert curve.at(rows) == pytest.approx(seen, rel=0.02)


def test_one_round_that_was_held_up_moves_little() -> None:
    curve = RowCurve({1: 0.1, 8: 0.3})
    assert curve.corrected(8, 1000.0).at(8) <= 0.3 * 1.1001


def test_sequences_and_context_cost_beside_rows() -> None:
    costs = ForwardCosts(RowCurve({1: 0.1, 4: 0.4}), per_sequence=0.01, per_position=0.0001)
    assert costs.verify(4, 3, 1000) == pytest.approx(0.4 + 0.02 + 0.1)


def test_serving_corrects_what_is_believed_now_and_never_the_start() -> None:
    live = LiveCosts()
    live.observe(1, 1, 0, 0.5)  # before anything was measured there is nothing to correct
    live.begin(ForwardCosts(RowCurve({1: 0.1, 8: 0.2}), RowCurve({1: 0.05, 4: 0.06})))
    before = live.start
    for _ in range(200):
        live.observe(8, 2, 300, 0.3, [DraftStep(2, 2, 0.08)])
    assert live.now is not None
    assert live.now.draft is not None
    assert live.now.verify(8, 2, 300) == pytest.approx(0.3, rel=0.02)
    assert live.now.draft.at(2) == pytest.approx(0.08, rel=0.02)
    assert live.start is before
    assert before is not None
    assert before.verify(8) == 0.2


def test_rows_beyond_the_measured_are_learnt_as_soon_as_they_are_seen() -> None:
    live = LiveCosts()
    live.begin(ForwardCosts(RowCurve({1: 0.1, 32: 0.1})))
    for _ in range(60):
        live.observe(300, 30, 0, 0.7)
    assert live.now is not None
    assert live.now.verify(300, 30) == pytest.approx(0.7, rel=0.05)
    assert live.now.verify(32, 30) < 0.2
    assert list(live.now.target.points) == [1, 32, 512]


@given(st.lists(st.tuples(st.integers(1, 200), st.floats(0.85, 1.2)), min_size=1, max_size=60))
def test_rows_that_all_cost_the_same_never_come_to_look_free(rounds: list[tuple[int, float]]) -> None:
    """However long each round takes by chance, and wherever the first one beyond what was measured ends."""
    true = RowCurve({1: 0.06, 4: 0.075, 8: 0.11, 16: 0.2, 256: 2.9})
    live = LiveCosts()
    live.begin(ForwardCosts(RowCurve({rows: true.at(rows) for rows in (1, 4, 8, 16)})))
    for rows, chance in rounds:
        live.observe(rows, 1, 0, true.at(rows) * chance)
    assert live.now is not None
    points = [rows for rows in live.now.target.points if rows >= 16]
    for one, other in pairwise(points):
        cost = (live.now.target.at(other) - live.now.target.at(one)) / (other - one)
        assert cost > 0.25 * (true.at(other) - true.at(one)) / (other - one)


def test_what_every_round_takes_beside_its_forward_does_not_look_like_its_rows() -> None:
    """Start-up times forwards alone; serving adds the same to each round, mostly seen at the usual number of rows."""
    live, measured = LiveCosts(), ForwardCosts(RowCurve({1: 0.10, 4: 0.11, 8: 0.15, 16: 0.22}))
    live.begin(measured)
    for _ in range(300):
        live.observe(16, 16, 0, 0.25)
        live.observe(8, 8, 0, 0.18)
    assert live.now is not None
    assert live.now.verify(16, 16) == pytest.approx(0.25, rel=0.03)
    assert live.now.verify(16) - live.now.verify(8) == pytest.approx(0.07, rel=0.15)


def test_a_point_below_what_is_seen_gives_way() -> None:
    """Rather than hide how far the one before it has risen, to let it all out later."""
    curve = RowCurve({1: 0.10, 2: 0.101, 4: 0.11})
    for _ in range(200):
        curve = curve.corrected(1, 0.105 / curve.at(1))
    assert curve.at(1) == pytest.approx(0.105, rel=0.01)
    assert curve.points[1] <= curve.points[2] <= curve.points[4]


@given(curve=CURVES, company=st.integers(1, 40), rows=st.integers(1, 300))
def test_one_of_many_alike_pays_for_the_rows_of_all(curve: RowCurve, company: int, rows: int) -> None:
    assert curve.times(company).at(rows) == pytest.approx(curve.at(company * rows))
    costs = ForwardCosts(curve, curve, per_sequence=0.5, per_position=0.25, per_round=2.0)
    together = costs.verify(company * rows, company, company * 7)
    assert costs.times(company).verify(rows, 1, 7) == pytest.approx(together)
    live = LiveCosts()
    live.begin(costs, company=company)
    assert live.start is not None
    assert live.start.verify(rows, 1, 7) == pytest.approx(together)
    assert live.now is costs


def test_pinned_costs_are_the_start_and_measured_ones_the_present() -> None:
    live, measured, pinned = LiveCosts(), ForwardCosts(RowCurve({1: 0.1})), ForwardCosts(RowCurve({1: 1.0, 9: 2.0}))
    live.begin(measured, pinned)
    assert (live.start, live.now) == (pinned, measured)


@pytest.mark.parametrize(("per_sequence", "per_position"), [(0.05, 0.0), (0.0, 1e-4), (0.05, 1e-4)])
def test_a_figure_of_company_that_other_load_spoiled_is_unlearnt_and_rows_stay_dear(
    per_sequence: float, per_position: float
) -> None:
    truth = ForwardCosts(RowCurve({1: 0.06, 8: 0.1, 16: 0.15}), None)
    live = LiveCosts()
    live.begin(ForwardCosts(truth.target, None, per_sequence, per_position))
    for turn in range(300):
        rows = 8 + turn % 9
        live.observe(rows, 8, 2000, truth.verify(rows, 8, 2000))
    assert live.now is not None
    for rows in (8, 12, 16):
        assert live.now.verify(rows, 8, 2000) == pytest.approx(truth.verify(rows, 8, 2000), rel=0.15)
    slope = live.now.target.at(16) - live.now.target.at(8)
    assert slope > 0.5 * (truth.target.at(16) - truth.target.at(8))
