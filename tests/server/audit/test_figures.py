"""The audit's figures: intervals, sets of their own and shared ones, and when the guard acts."""

import random

import pytest

from core.verifiers.params import FlyParams, LossyParams
from server.audit.figures import GUARDED_TOKENS, MOST_SETS, Figures
from server.audit.replay import Findings

FLY = FlyParams()


def found(*reconverged: bool, own: float = -0.5, delivered: float = -0.7) -> Findings:
    return Findings(len(reconverged), reconverged, delivered, own)


def test_figures_add_up_over_answers() -> None:
    figures = Figures(None, 10)
    figures.add(FLY, found(True, False, True, own=-0.5, delivered=-0.9))
    figures.add(FLY, found(True, own=-0.3, delivered=-0.4))
    (one,) = figures.sets()
    assert (one.answers, one.loosened, one.all.judged, one.all.reconverged) == (2, 4, 4, 3)
    assert one.mean_gap == pytest.approx(0.25)
    assert one.gap_error == pytest.approx(0.15)  # of 0.4 and 0.1: deviation 0.212, over the root of 2


def test_parameters_that_differ_are_judged_apart() -> None:
    figures = Figures(0.9, 2)
    wild = FlyParams(entropy_threshold=0.0, window=0)
    assert figures.add(FLY, found(True, True)) is None
    demotion = figures.add(wild, found(False, False))
    assert demotion is not None
    assert demotion.share == 0
    assert figures.demotion(FLY) is None
    assert figures.demotion(wild) == demotion
    assert figures.demoted_verifiers() == {"fly"}


def test_the_guard_judges_one_window_after_the_other() -> None:
    figures = Figures(0.9, 4)
    assert figures.add(FLY, found(False, False, False)) is None
    assert figures.add(FLY, found(True, True, True)) is None  # 3 of 6: too few to say
    assert figures.add(FLY, found(False, False)) is None
    assert figures.add(FLY, found(False)) is None  # the three of before are forgotten
    demotion = figures.add(FLY, found(False, False, False))
    assert demotion is not None
    assert (demotion.share, demotion.tokens) == (0, 6)
    assert demotion.interval[1] < 0.9
    assert figures.add(FLY, found(*[False] * 4)) is None  # demoted already


def test_one_answer_is_but_a_part_of_a_window() -> None:
    figures = Figures(0.5, GUARDED_TOKENS + 1)
    assert figures.add(FLY, found(*[False] * 50)) is None
    assert figures.add(FLY, found(*[True] * 50)) is None
    (one,) = figures.sets()
    assert (one.all.judged, one.window.judged) == (100, 0)


def demoted(share: float, alike: bool, windows: int) -> float:
    """Which part of so many windows of 200 tokens demotes at a floor of 0.8. alike: an answer's 4 tokens all come back
    or none."""
    rng, count = random.Random(1), 0
    for _ in range(windows):
        figures = Figures(0.8, 200)
        for _ in range(50):
            back = [rng.random() < share] * 4 if alike else [rng.random() < share for _ in range(4)]
            figures.add(FLY, found(*back))
        count += figures.demotion(FLY) is not None
    return count / windows


@pytest.mark.parametrize(
    ("share", "alike", "least", "most"),
    [  # docs/audit.md has these
        (0.85, False, 0, 0.002),
        (0.85, True, 0, 0.005),
        (0.8, False, 0.01, 0.04),
        (0.8, True, 0.02, 0.06),
        (0.7, False, 0.85, 0.95),
        (0.6, True, 0.8, 0.97),
    ],
)
def test_how_often_the_guard_is_wrong(share: float, alike: bool, least: float, most: float) -> None:
    assert least <= demoted(share, alike, 1000) <= most


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
