"""The audit's figures: intervals, sets of their own and shared ones, and when the guard acts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.verifiers.params import FlyParams, LossyParams
from server.audit.figures import MOST_SETS, Figures, wilson
from server.audit.replay import Findings

FLY = FlyParams()


def found(*reconverged: bool, own: float = -0.5, delivered: float = -0.7) -> Findings:
    return Findings(len(reconverged), reconverged, delivered, own)


@given(st.integers(1, 300), st.data())
def test_an_interval_holds_the_shares_whose_test_would_not_refuse_them(trials: int, data: st.DataObject) -> None:
    """Wilson's interval is where |observed - p| is at most z standard errors of p."""
    successes = data.draw(st.integers(0, trials))
    low, high = wilson(successes, trials)
    assert 0 <= low <= successes / trials + 1e-12
    assert successes / trials - 1e-12 <= high <= 1
    for p, inside in ((low, True), (high, True), (low - 0.01, False), (high + 0.01, False)):
        if 0 < p < 1:
            distance = abs(successes / trials - p)
            bound = 1.959964 * math.sqrt(p * (1 - p) / trials)
            assert (distance <= bound + 1e-9) is inside


def test_figures_add_up_over_answers() -> None:
    figures = Figures(None, 10)
    figures.add(FLY, found(True, False, True, own=-0.5, delivered=-0.9))
    figures.add(FLY, found(True, own=-0.3, delivered=-0.4))
    (one,) = figures.sets()
    assert (one.answers, one.loosened, one.judged, one.reconverged) == (2, 4, 4, 3)
    assert one.mean_gap == pytest.approx(0.25)
    assert one.gap_error == pytest.approx(0.15)  # of 0.4 and 0.1: deviation 0.212, over the root of 2


def test_parameters_that_differ_are_judged_apart() -> None:
    figures = Figures(0.5, 2)
    wild = FlyParams(entropy_threshold=0.0, window=0)
    assert figures.add(FLY, found(True, True)) is None
    demotion = figures.add(wild, found(False, False))
    assert demotion is not None
    assert demotion.share == 0
    assert figures.demotion(FLY) is None
    assert figures.demotion(wild) == demotion
    assert figures.demoted_verifiers() == {"fly"}


def test_the_guard_waits_for_enough_tokens_and_looks_at_the_last_ones() -> None:
    figures = Figures(0.5, 4)
    assert figures.add(FLY, found(False, False, False)) is None
    assert figures.add(FLY, found(True, True, True)) is None  # the last four: 3 of 4
    assert figures.add(FLY, found(False, False)) is None  # 2 of 4 is the floor itself
    demotion = figures.add(FLY, found(False))
    assert demotion is not None
    assert (demotion.share, demotion.tokens) == (0.25, 4)
    assert figures.add(FLY, found(False)) is None  # demoted already


def test_without_a_floor_nobody_is_demoted() -> None:
    figures = Figures(None, 1)
    assert figures.add(FLY, found(False, False)) is None


def test_clearing_lifts_demotions() -> None:
    figures = Figures(0.9, 1, [FLY])
    assert figures.add(FLY, found(False)) is not None
    fresh = figures.cleared()
    assert fresh.demotion(FLY) is None
    assert fresh.sets() == []


def test_sets_beyond_the_first_ones_share_figures_but_defaults_never_do() -> None:
    figures = Figures(0.5, 1, [FLY])
    for number in range(MOST_SETS + 20):
        figures.add(LossyParams(threshold=0.2 + number / 1000), found(True))
    figures.add(FLY, found(True))
    own = [one for one in figures.sets() if one.params is not None]
    (shared,) = (one for one in figures.sets() if one.params is None)
    assert len(own) == MOST_SETS
    assert FLY in {one.params for one in own}
    assert (shared.verifier, shared.answers) == ("lossy", 21)
