"""CSD, the hybrid of FLy and CSD, and the lossy baseline."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.correction_memory import MemorySnapshot
from core.evidence import Evidence
from core.provenance import Provenance
from core.verifiers import csd, fly, hybrid, lossy
from core.verifiers.params import CsdParams, HybridParams, LossyParams
from tests.core.verifiers.blocks import (
    any_block,
    bits,
    make_block,
    memory_of,
    positions,
    slow_csd,
    slow_fly,
    slow_lossy,
)

EMPTY = MemorySnapshot()
# Pairs as make_block's mismatches have them: the choice is the draft + 100.
PAIRS = st.dictionaries(st.integers(0, 3).map(lambda token: (token, token + 100)), st.integers(1, 12))


def test_needs_both_the_memory_and_the_gate() -> None:
    memory = memory_of({(10, 110): 6, (12, 112): 5})
    near, far = math.log(0.3), math.log(0.3) - 1e-6
    for gap, drafts, rescued in ((near, [10], {0}), (far, [10], set()), (near, [12], set()), (near, [13], set())):
        block = make_block([False], gap=[gap], draft=drafts)
        assert positions(csd.loosen(block, CsdParams(), memory), Provenance.CALIBRATED) == rescued


def test_every_position_stands_alone_up_to_the_last() -> None:
    memory = memory_of({(token, token + 100): 6 for token in range(10, 14)})
    block = make_block(bits("0000"), gap=[0.0] * 4)
    assert csd.loosen(block, CsdParams(), memory) == [Provenance.CALIBRATED] * 4


def test_protected_positions_are_never_rescued() -> None:
    memory = memory_of({(token, token + 100): 9 for token in range(10, 13)})
    block = make_block(bits("000"), gap=[0.0] * 3, protected=bits("010"))
    assert positions(csd.loosen(block, CsdParams(), memory), Provenance.CALIBRATED) == {0, 2}


def test_threshold_per_million_calibrated_tokens() -> None:
    params = CsdParams(frequency_threshold=6, frequency_unit="per_million")
    block = make_block([False], gap=[0.0])
    for tokens, rescued in ((2_500_000, True), (2_500_001, False), (1_000, True), (0, True)):
        loosened = csd.loosen(block, params, memory_of({(10, 110): 15}, tokens))
        assert (loosened[0] is not None) == rescued


def slow_learned(block: Evidence, rescued: set[int], params: CsdParams, delivered: int) -> list[tuple[int, int]]:
    """Mismatches up to the first that was not rescued, of those the ones whose gap passes and that gave a token."""
    mismatches = [j for j in range(len(block.draft)) if not block.native[j]]
    rejected = next((j for j in mismatches if j not in rescued), len(block.draft))
    return [
        (block.draft[j], block.choice[j])
        for j in mismatches
        if j <= rejected and j < delivered and not block.protected[j] and block.gap[j] >= math.log(params.ratio)
    ]


@given(block=any_block(), pairs=PAIRS, ratio=st.sampled_from([0.01, 0.3]), delivered=st.integers(0, 17))
def test_what_is_learned_of_a_block_is_its_rescues_and_the_first_rejection_where_the_gap_passes(
    block: Evidence, pairs: dict[tuple[int, int], int], ratio: float, delivered: int
) -> None:
    params = CsdParams(ratio=ratio)
    loosened = csd.loosen(block, params, memory_of(pairs))
    rescued = positions(loosened, Provenance.CALIBRATED)
    assert list(csd.learned_pairs(block, loosened, params, delivered)) == slow_learned(
        block, rescued, params, delivered
    )


@pytest.mark.parametrize("unit", ["count", "per_million"])
def test_a_pair_the_memory_lacks_is_never_rescued_however_low_the_threshold(unit: str) -> None:
    params = CsdParams.model_validate({"frequency_threshold": 1e-9, "frequency_unit": unit})
    block = make_block([False], gap=[0.0])
    assert csd.loosen(block, params, EMPTY) == [None]
    assert csd.loosen(block, params, memory_of({(10, 110): 1})) == [Provenance.CALIBRATED]


@given(
    block=any_block(),
    pairs=PAIRS,
    tokens=st.sampled_from([0, 1000, 1_000_000, 1_500_000]),
    unit=st.sampled_from(["count", "per_million"]),
    ratio=st.sampled_from([0.01, 0.3, 0.6, 1.0]),
)
def test_csd_equals_the_slow_rule(block, pairs, tokens: int, unit: str, ratio: float) -> None:
    params = CsdParams.model_validate({"frequency_unit": unit, "ratio": ratio})
    loosened = csd.loosen(block, params, memory_of(pairs, tokens))
    assert positions(loosened, Provenance.CALIBRATED) == slow_csd(block, params, pairs, tokens)
    assert set(loosened) <= {None, Provenance.CALIBRATED}


def test_hybrid_covers_the_end_of_the_block_and_calls_overlap_deferred() -> None:
    memory = memory_of({(10, 110): 6, (15, 115): 6})
    block = make_block(bits("011110"), entropy=[1.0] * 6, gap=[0.0] * 6)
    loosened = hybrid.loosen(block, HybridParams(window=4), memory)
    assert loosened == [Provenance.DEFERRED, None, None, None, None, Provenance.CALIBRATED]


def test_hybrid_keeps_the_window_native_only() -> None:
    memory = memory_of({(12, 112): 6})
    block = make_block(bits("010111"), entropy=[1.0] * 6, gap=[-9.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    loosened = hybrid.loosen(block, HybridParams(window=3), memory)
    assert positions(loosened, Provenance.DEFERRED) == {2}, "the rescued draft 2 is no agreement for draft 0"


@given(block=any_block(), pairs=PAIRS, window=st.integers(0, 8))
def test_hybrid_is_the_union(block, pairs, window: int) -> None:
    params, memory = HybridParams(window=window), memory_of(pairs)
    loosened = hybrid.loosen(block, params, memory)
    deferred, calibrated = slow_fly(block, params), slow_csd(block, params, pairs, 0)
    assert positions(loosened, Provenance.DEFERRED) == deferred
    assert positions(loosened, Provenance.CALIBRATED) == calibrated - deferred


def test_what_csd_rescues_may_count_as_agreement() -> None:
    memory = memory_of({(12, 112): 6})
    block = make_block(bits("010111"), entropy=[1.0] * 6, gap=[-9.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    loosened = hybrid.loosen(block, HybridParams(window=3, agreement="rescued"), memory)
    assert positions(loosened, Provenance.DEFERRED) == {0, 2}
    wanting = HybridParams(window=4, agreement="rescued")  # too long for draft 2, which the memory still rescues
    loosened = hybrid.loosen(block, wanting, memory)
    assert loosened[:3] == [Provenance.DEFERRED, None, Provenance.CALIBRATED]
    assert positions(hybrid.loosen(block, wanting, EMPTY), Provenance.DEFERRED) == set()


@given(
    block=any_block(),
    pairs=PAIRS,
    window=st.integers(0, 8),
    agreement=st.sampled_from(["native", "rescued"]),
    floor=st.sampled_from([0.0, 0.29, 0.3, 1.0]),
)
def test_hybrid_variants_equal_the_slow_rule(block, pairs, window: int, agreement, floor: float) -> None:
    params = HybridParams(window=window, agreement=agreement, rescue_entropy=floor)
    memory = memory_of(pairs)
    rescued = {j for j in slow_csd(block, params, pairs, 0) if floor == 0.0 or block.entropy[j] >= floor}
    counted = [native or (agreement == "rescued" and j in rescued) for j, native in enumerate(block.native)]
    deferred = slow_fly(block, params, counted)
    loosened = hybrid.loosen(block, params, memory)
    assert positions(loosened, Provenance.DEFERRED) == deferred
    assert positions(loosened, Provenance.CALIBRATED) == rescued - deferred
    for j in deferred | rescued:
        assert hybrid.may_loosen(j, block.draft, block.choice, block.native, params, memory)


@given(block=any_block(), pairs=PAIRS)
def test_hybrid_with_a_window_as_long_as_the_block_is_csd(block, pairs) -> None:
    params, memory = HybridParams(window=max(1, len(block.draft))), memory_of(pairs)
    assert fly.loosen(block, params, memory) == [None] * len(block.draft)
    assert hybrid.loosen(block, params, memory) == csd.loosen(block, params, memory)


@given(block=any_block(), threshold=st.sampled_from([0.01, 0.3, 0.6, 1.0]))
def test_lossy_equals_the_slow_rule(block, threshold: float) -> None:
    params = LossyParams(threshold=threshold)
    loosened = lossy.loosen(block, params, EMPTY)
    assert positions(loosened, Provenance.LENIENT) == slow_lossy(block, params)
    assert set(loosened) <= {None, Provenance.LENIENT}
