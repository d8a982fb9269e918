"""FLy: the entropy gate and the deferred window."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.correction_memory import MemorySnapshot
from core.provenance import Provenance
from core.verifiers import fly
from core.verifiers.params import FlyParams
from core.verifiers.registry import accepted_length
from tests.core.verifiers.blocks import any_block, bits, make_block, positions, slow_fly

EMPTY = MemorySnapshot()


@pytest.mark.parametrize(
    ("pattern", "accepted"),
    [("110111110111111", 2), ("110111101111111", 2), ("111111110111111", 15), ("111111111011111", 9)],
)
def test_paper_vectors(pattern: str, accepted: int) -> None:
    block = make_block(bits(pattern), entropy=[1.0] * 15)
    assert accepted_length(block, fly.loosen(block, FlyParams(window=6), EMPTY)) == accepted


def test_several_positions_more_than_a_window_apart_are_loosened_in_one_block() -> None:
    block = make_block(bits("0111011110111"), entropy=[1.0] * 13)
    assert positions(fly.loosen(block, FlyParams(window=3), EMPTY), Provenance.DEFERRED) == {0, 4, 9}


def test_a_mismatch_exactly_a_window_behind_rejects() -> None:
    block = make_block(bits("0110111"), entropy=[1.0] * 7)
    assert positions(fly.loosen(block, FlyParams(window=3), EMPTY), Provenance.DEFERRED) == {3}


def test_window_zero_leaves_only_the_gate_and_reaches_the_last_draft() -> None:
    block = make_block(bits("00100"), entropy=[0.3, 0.29, 1.0, 1.0, 0.3])
    assert positions(fly.loosen(block, FlyParams(window=0), EMPTY), Provenance.DEFERRED) == {0, 3, 4}


@pytest.mark.parametrize("drafts", [1, 5, 6])
def test_blocks_no_longer_than_the_window_are_strict(drafts: int) -> None:
    block = make_block([False] + [True] * (drafts - 1), entropy=[1.0] * drafts)
    assert fly.loosen(block, FlyParams(window=6), EMPTY) == [None] * drafts


def test_the_gate_opens_at_the_threshold_itself_and_never_for_an_entropy_not_gathered() -> None:
    for entropy, opens in ((0.3, True), (0.2999, False), (float("nan"), False)):
        block = make_block(bits("011"), entropy=[entropy] * 3)
        assert (fly.loosen(block, FlyParams(window=2), EMPTY)[0] is not None) == opens


def test_a_protected_mismatch_is_strict_but_a_protected_native_counts_as_agreement() -> None:
    block = make_block(bits("0110111"), entropy=[1.0] * 7, protected=bits("0110000"))
    assert positions(fly.loosen(block, FlyParams(window=2), EMPTY), Provenance.DEFERRED) == {0, 3}
    block = make_block(bits("0110111"), entropy=[1.0] * 7, protected=bits("1000000"))
    assert positions(fly.loosen(block, FlyParams(window=2), EMPTY), Provenance.DEFERRED) == {3}


@pytest.mark.parametrize("window", [0, 3, 6])
def test_equals_the_slow_rule_on_every_pattern_up_to_ten_drafts(window: int) -> None:
    params = FlyParams(window=window)
    for drafts in range(11):
        for number, native in enumerate(product((False, True), repeat=drafts)):
            # All gates open, all shut, and two mixed patterns that vary from one native pattern to the next.
            for gates in (-1, 0, number * 2654435761 >> 7, number * 40503 >> 3 ^ 0b1011010110):
                entropy = [0.3 if gates >> j & 1 else 0.29 for j in range(drafts)]
                block = make_block(native, entropy=entropy)
                expected = slow_fly(block, params)
                assert positions(fly.loosen(block, params, EMPTY), Provenance.DEFERRED) == expected


@given(block=any_block(), window=st.integers(0, 8), threshold=st.sampled_from([0.0, 0.3, 0.5, 2.0]))
def test_equals_the_slow_rule(block, window: int, threshold: float) -> None:
    params = FlyParams(window=window, entropy_threshold=threshold)
    loosened = fly.loosen(block, params, EMPTY)
    assert positions(loosened, Provenance.DEFERRED) == slow_fly(block, params)
    assert set(loosened) <= {None, Provenance.DEFERRED}
