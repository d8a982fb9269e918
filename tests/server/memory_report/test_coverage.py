import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server.memory_report.coverage import SHARES, coverage, known_often


def test_a_worked_example() -> None:
    counts = np.array([1, 10, 2, 4, 3], np.int64)
    assert coverage(counts, (0.2, 0.4, 1.0)) == [(0.2, 0.5), (0.4, 0.7), (1.0, 1.0)]
    assert known_often(counts, 4) == (2, 0.7)
    assert coverage(np.zeros(0, np.int64)) == []
    assert known_often(np.zeros(0, np.int64), 1) == (0, 0.0)


@given(counts=st.lists(st.integers(1, 1000), min_size=1, max_size=300))
def test_the_curve_rises_above_the_diagonal_to_all(counts: list[int]) -> None:
    points = coverage(np.array(counts, np.int64))
    covered = [share for _, share in points]
    assert [share for share, _ in points] == list(SHARES)
    assert covered == sorted(covered)
    assert covered[-1] == 1.0
    at_least_a_pattern = [max(share, 1 / len(counts)) for share in SHARES]
    assert all(got >= even - 0.5 / len(counts) for got, even in zip(covered, at_least_a_pattern, strict=True))
