"""What is thought of a loose verifier before its sequence has shown anything."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.verifiers.params import CsdParams, FlyParams, HybridParams, LossyParams, TypicalParams, VerifierParams
from scheduler.drafting import usual_loosening
from tests.scheduler.adaptive import floor, loose

CHANCES = st.floats(0.0, 0.98)
GATES = st.floats(0.0, 2.0)


@given(CHANCES, GATES, GATES, st.integers(0, 20), st.integers(0, 20))
def test_a_higher_gate_and_a_longer_window_forgive_less(
    later: float, gate: float, other_gate: float, window: int, other_window: int
) -> None:
    more = FlyParams(entropy_threshold=min(gate, other_gate), window=min(window, other_window))
    less = FlyParams(entropy_threshold=max(gate, other_gate), window=max(window, other_window))
    assert 0.0 <= usual_loosening(less, later) <= usual_loosening(more, later) <= 1.0


@given(CHANCES, GATES, st.integers(0, 20))
def test_hybrid_forgives_what_either_does(later: float, gate: float, window: int) -> None:
    fly = usual_loosening(FlyParams(entropy_threshold=gate, window=window), later)
    both = usual_loosening(HybridParams(entropy_threshold=gate, window=window), later)
    assert max(fly, usual_loosening(CsdParams(), later)) <= both <= 1.0


def test_a_gate_that_never_opens_forgives_nothing_and_one_seldom_open_little() -> None:
    assert usual_loosening(FlyParams(entropy_threshold=1.1), 0.9) == 0.0
    assert 0.0 < usual_loosening(FlyParams(entropy="full"), 0.9) < usual_loosening(FlyParams(), 0.9) / 10


@pytest.mark.parametrize(
    ("verifier", "some"),
    [
        (FlyParams(), False),
        (HybridParams(), False),
        (LossyParams(), True),
        (TypicalParams(), True),
        (CsdParams(), False),
    ],
)
def test_where_a_block_may_end_early_only_a_verifier_without_a_window_forgives(
    verifier: VerifierParams, some: bool
) -> None:
    """csd has no memory here, so it forgives nothing either."""
    on = floor(0.7)
    on.add(dataclasses.replace(loose("a", drafts=5), verifier=verifier))
    found = [item for _ in range(12) for item in on.round().values() if item.num_drafts]
    assert found
    assert all((item.forgiving > 0) == some for item in found if item.min_reach > 0)
    assert any(item.min_reach > 0 for item in found)
