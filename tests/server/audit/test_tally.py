"""A tally's interval: Wilson's by its definition, and what dependent tokens are worth."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.audit.tally import Tally, wilson


@given(st.integers(1, 300), st.data())
def test_an_interval_holds_the_shares_whose_test_would_not_refuse_them(trials: int, data: st.DataObject) -> None:
    """Wilson's interval is where |observed - p| is at most z standard errors of p."""
    successes = data.draw(st.integers(0, trials))
    low, high = wilson(successes / trials, trials)
    assert 0 <= low <= successes / trials + 1e-12
    assert successes / trials - 1e-12 <= high <= 1
    for p, inside in ((low, True), (high, True), (low - 0.01, False), (high + 0.01, False)):
        if 0 < p < 1:
            distance = abs(successes / trials - p)
            bound = 1.959964 * math.sqrt(p * (1 - p) / trials)
            assert (distance <= bound + 1e-9) is inside


def tally(*answers: list[bool]) -> Tally:
    one = Tally()
    for verdicts in answers:
        one.add(verdicts)
    return one


verdicts = st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=2, max_size=12)


@given(verdicts)
def test_the_trials_are_the_tokens_over_the_design_effect(answers: list[list[bool]]) -> None:
    one = tally(*answers)
    tokens = sum(map(len, answers))
    assert (one.answers, one.judged, one.reconverged) == (len(answers), tokens, sum(map(sum, answers)))
    if one.share in (0, 1):
        assert one.interval() == wilson(one.share, len(answers))
        return
    scatter = sum((sum(back) - one.share * len(back)) ** 2 for back in answers) * len(answers) / (len(answers) - 1)
    effect = max(1.0, scatter / (one.share * (1 - one.share) * tokens))
    assert one.interval() == pytest.approx(wilson(one.share, tokens / effect))


def test_answers_of_one_token_are_independent() -> None:
    one = tally(*[[True]] * 30, *[[False]] * 10)
    low, high = wilson(0.75, 40)
    assert one.interval()[0] == pytest.approx(low, abs=0.003)
    assert one.interval()[1] == pytest.approx(high, abs=0.003)


def test_tokens_that_go_with_their_answer_are_worth_one_an_answer() -> None:
    rng = random.Random(1)
    trials = [tally(*[[rng.random() < 0.7] * 8 for _ in range(60)])._trials() for _ in range(20)]
    assert statistics.mean(trials) == pytest.approx(60, rel=0.1)


def test_one_answer_says_as_much_as_one_token() -> None:
    assert tally([True, False, True, True]).interval() == wilson(0.75, 1)
    assert tally([True] * 16).interval() == wilson(1, 1)
