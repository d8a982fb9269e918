"""Typical acceptance: the draft's probability against what the row's entropy asks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.correction_memory import MemorySnapshot
from core.evidence import Evidence
from core.provenance import Provenance
from core.verifiers import typical
from core.verifiers.params import TypicalParams
from tests.core.verifiers.blocks import NAN, any_block, bits, make_block, positions, slow_typical

EMPTY = MemorySnapshot()


def test_delta_is_the_square_root_of_epsilon_by_default_as_the_authors_advise() -> None:
    assert TypicalParams().delta == pytest.approx(math.sqrt(TypicalParams().epsilon))


@pytest.mark.parametrize(
    ("words", "likely", "passes"),
    [
        ({"blue": 0.80, "red": 0.11, "green": 0.09}, "red", True),  # sure of itself: above 0.09 passes
        ({"blue": 0.80, "red": 0.11, "green": 0.09}, "green", False),  # 0.09 itself does not
        ({"Berlin": 0.97, "Paris": 0.03}, "Paris", False),
        ({f"name {n}": 0.1 for n in range(10)}, "name 7", True),  # ten alike: 0.3 / 10 suffices
        ({**{f"name {n}": 0.098 for n in range(10)}, "odd": 0.02}, "odd", False),
        ({**{f"name {n}": 0.0096 for n in range(100)}, "odd": 0.04}, "odd", True),
        ({**{f"name {n}": 0.00997 for n in range(100)}, "odd": 0.0029}, "odd", False),  # a hundred: 0.003
    ],
)
def test_in_words(words: dict[str, float], likely: str, passes: bool) -> None:
    assert math.fsum(words.values()) == pytest.approx(1.0, abs=0.002)
    entropy = -math.fsum(p * math.log(p) for p in words.values())
    block = make_block([False], entropy=[entropy], probability=[words[likely]])
    assert typical.loosen(block, TypicalParams(), EMPTY) == [Provenance.TYPICAL if passes else None]


def test_epsilon_and_delta_each_let_pass_alone() -> None:
    block = make_block([False], entropy=[2.0], probability=[0.05])  # exp(-2) = 0.135
    for epsilon, delta, passes in ((0.04, 1.0, True), (1.0, 0.3, True), (0.06, 0.5, False)):
        loosened = typical.loosen(block, TypicalParams(epsilon=epsilon, delta=delta), EMPTY)
        assert (loosened[0] is not None) == passes


def test_every_position_stands_alone_and_protected_ones_never_pass() -> None:
    block = make_block(bits("0100"), entropy=[1.0] * 4, probability=[0.4] * 4, protected=bits("0010"))
    assert positions(typical.loosen(block, TypicalParams(), EMPTY), Provenance.TYPICAL) == {0, 3}


@pytest.mark.parametrize(("entropy", "probability"), [(NAN, 0.9), (0.5, NAN), (NAN, NAN)])
def test_a_broken_row_is_no_licence(entropy: float, probability: float) -> None:
    block = make_block([False], entropy=[entropy], probability=[probability])
    assert typical.loosen(block, TypicalParams(), EMPTY) == [None]


@given(block=any_block(), epsilon=st.floats(1e-6, 1.0), delta=st.floats(1e-6, 1.0))
def test_equals_the_slow_rule(block: Evidence, epsilon: float, delta: float) -> None:
    params = TypicalParams(epsilon=epsilon, delta=delta)
    loosened = typical.loosen(block, params, EMPTY)
    assert positions(loosened, Provenance.TYPICAL) == slow_typical(block, params)
    assert set(loosened) <= {None, Provenance.TYPICAL}


@given(block=any_block(), least=st.floats(1e-6, 1.0), more=st.floats(0.0, 0.5))
def test_a_lower_bar_never_loosens_less(block: Evidence, least: float, more: float) -> None:
    low, high = TypicalParams(epsilon=least), TypicalParams(epsilon=min(1.0, least + more))
    kept = positions(typical.loosen(block, high, EMPTY), Provenance.TYPICAL)
    assert kept <= positions(typical.loosen(block, low, EMPTY), Provenance.TYPICAL)
