import itertools
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.evaluation.bootstrap import Pairs, interval, recovery


def pairs(*scores: tuple[float, float]) -> Pairs:
    return np.array(scores, dtype=float)


def test_recovery_is_a_ratio_of_sums_over_all_tasks() -> None:
    first, second = pairs((1, 1), (0, 1)), pairs((1, 0), (1, 1), (0.5, 1))
    assert recovery([first]) == 0.5
    assert recovery([first, second]) == pytest.approx(3.5 / 4)
    assert recovery([pairs((1, 0))]) is None


def test_the_interval_is_that_of_a_slow_resampling_item_by_item() -> None:
    tasks = [pairs(*[(1, 1)] * 30, *[(0, 1)] * 4, *[(1, 0)] * 2, *[(0, 0)] * 10), pairs(*[(1, 1)] * 8, (0, 1), (0, 0))]
    chance = random.Random(1)
    drawn = []
    for _ in range(4000):
        mine = its = 0.0
        for task in tasks:
            for _ in task:
                one = task[chance.randrange(len(task))]
                mine, its = mine + one[0], its + one[1]
        drawn.append(mine / its)
    cuts = statistics.quantiles(drawn, n=40)
    assert interval(tasks) == pytest.approx((cuts[0], cuts[-1]), abs=0.015)


def test_the_interval_of_three_items_is_that_of_all_27_draws() -> None:
    task = pairs((1, 1), (0, 1), (1, 1))
    every = [task[list(draw)].sum(axis=0) for draw in itertools.product(range(3), repeat=3)]
    ratios = sorted(float(mine / its) for mine, its in every)
    assert interval([task], draws=20_000) == pytest.approx((ratios[0], ratios[-1]))


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0])), min_size=1, max_size=12))
def test_an_interval_holds_still_and_pairs_that_are_equal_leave_nothing_unsure(
    scores: list[tuple[float, float]],
) -> None:
    task = pairs(*scores)
    found = interval([task], draws=200)
    assert found == interval([task], draws=200)
    same = interval([pairs(*[(its, its) for _, its in scores])], draws=200)
    if recovery([task]) is None:
        assert found is None
    else:
        assert found is not None
        assert found[0] <= found[1]
        assert same == (1.0, 1.0)
