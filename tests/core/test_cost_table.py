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
