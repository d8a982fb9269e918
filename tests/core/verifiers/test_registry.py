"""What every verifier shares: dispatch, the accepted length, the tokens a block yields."""

from typing import Any

import pytest
from hypothesis import given

from core.correction_memory import MemorySnapshot
from core.evidence import Evidence
from core.provenance import Provenance
from core.verifiers.params import FlyParams, OffParams, StrictParams
from core.verifiers.registry import VERIFIERS, accepted_length, loosen, resolve_block
from tests.core.verifiers.blocks import any_block, bits, make_block, memory_of

MEMORY = memory_of({(token, token + 100): 9 for token in range(4)})
# As loose as each verifier gets, so that protection and nativeness are all that is left to hold it.
LOOSEST: dict[str, dict[str, Any]] = {
    "fly": {"window": 0, "entropy_threshold": 0.0},
    "csd": {"ratio": 1e-6, "frequency_threshold": 1e-9},
    "hybrid": {"window": 0, "entropy_threshold": 0.0, "ratio": 1e-6, "frequency_threshold": 1e-9},
    "lossy": {"threshold": 1e-6},
    "typical": {"epsilon": 1e-12},
}


def test_names_and_types_agree() -> None:
    assert list(VERIFIERS) == ["off", "strict", "fly", "csd", "hybrid", "lossy", "typical"]
    for name, verifier in VERIFIERS.items():
        assert verifier.name == name == verifier.params().type


@pytest.mark.parametrize("name", VERIFIERS)
@given(block=any_block())
def test_native_and_protected_positions_are_never_loosened(name: str, block: Evidence) -> None:
    loosened = loosen(block, VERIFIERS[name].params(**LOOSEST.get(name, {})), MEMORY)
    assert len(loosened) == len(block.draft)
    for how, native, protected in zip(loosened, block.native, block.protected, strict=True):
        assert how is None or (how.loosened and not native and not protected)


@pytest.mark.parametrize("name", VERIFIERS)
@given(block=any_block())
def test_what_the_pre_check_excludes_is_never_loosened(name: str, block: Evidence) -> None:
    verifier, params = VERIFIERS[name], VERIFIERS[name].params(**LOOSEST.get(name, {}))
    for memory in (MEMORY, MemorySnapshot()):
        for j, how in enumerate(loosen(block, params, memory)):
            if how is not None:
                assert verifier.may_loosen is not None
                assert verifier.may_loosen(j, block.draft, block.choice, block.native, params, memory)


@given(block=any_block())
def test_strict_and_off_loosen_nothing(block: Evidence) -> None:
    nothing = [None] * len(block.draft)
    assert loosen(block, StrictParams(), MEMORY) == loosen(block, OffParams(), MEMORY) == nothing


@pytest.mark.parametrize("name", VERIFIERS)
@given(block=any_block())
def test_a_block_yields_its_accepted_drafts_then_the_targets_choice(name: str, block: Evidence) -> None:
    loosened = loosen(block, VERIFIERS[name].params(**LOOSEST.get(name, {})), MEMORY)
    accepted = accepted_length(block, loosened)
    tokens = resolve_block(block, loosened)
    assert [token for token, _ in tokens] == [*block.draft[:accepted], block.choice[accepted]]
    for j, (_, provenance) in enumerate(tokens[:-1]):
        assert provenance is (Provenance.NATIVE if block.native[j] else loosened[j])
    if accepted < len(block.draft):
        assert not block.native[accepted]
        assert loosened[accepted] is None
        assert tokens[-1][1] is Provenance.CORRECTION
    else:
        assert tokens[-1][1] is (Provenance.BONUS if block.draft else Provenance.TARGET)


def test_a_worked_block() -> None:
    block = make_block(bits("101110"), entropy=[1.0] * 6)
    tokens = resolve_block(block, loosen(block, FlyParams(window=3), MEMORY))
    native = Provenance.NATIVE
    assert tokens == [
        (10, native),
        (11, Provenance.DEFERRED),
        (12, native),
        (13, native),
        (14, native),
        (115, Provenance.CORRECTION),
    ]


def test_a_loosened_position_behind_a_rejection_changes_nothing() -> None:
    block = make_block(bits("00111"), entropy=[0.0, 1.0, 0.0, 0.0, 0.0])
    loosened = loosen(block, FlyParams(window=3), MEMORY)
    assert loosened[1] is Provenance.DEFERRED
    assert resolve_block(block, loosened) == [(110, Provenance.CORRECTION)]


def test_full_acceptance_ends_with_the_bonus_and_an_empty_block_with_a_plain_token() -> None:
    block = make_block([True, True])
    assert resolve_block(block, [None, None])[-1] == (999, Provenance.BONUS)
    assert resolve_block(make_block([]), []) == [(999, Provenance.TARGET)]
