import pytest

from core.cost_table import CostTable


def test_unknown_until_measured() -> None:
    assert CostTable().off_step(1) is None


def test_straight_line_between_measured_sizes_and_flat_beyond() -> None:
    table = CostTable()
    table.record(1, 0.1)
    table.record(4, 0.4)
    assert table.off_step(2) == pytest.approx(0.2)
    assert table.off_step(4) == 0.4
    assert table.off_step(9) == 0.4


def test_new_observations_move_the_mean_by_the_smoothing_share() -> None:
    table = CostTable(smoothing=0.25)
    table.record(1, 1.0)
    table.record(1, 2.0)
    assert table.off_step(1) == 1.25


def test_no_step_costs_more_than_one_of_more_sequences() -> None:
    """Measured while something else held the machine up, two sequences once cost twice what four did."""
    table = CostTable()
    for size, seconds in ((1, 0.26), (2, 1.14), (4, 0.52), (8, 0.71)):
        table.record(size, seconds)
    assert table.off_step(2) == 0.52
    assert table.off_step(1) == 0.26


def test_any_round_bounds_the_cost_of_plain_ones_of_its_size_and_below() -> None:
    table = CostTable()
    for size, seconds in ((1, 0.3), (2, 0.5), (4, 0.9)):
        table.record(size, seconds)
    table.cap(2, 0.2)
    assert [table.off_step(size) for size in (1, 2, 4)] == [0.2, 0.2, 0.9]
