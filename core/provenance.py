"""Where a delivered token came from, and why a sequence ended."""

from enum import StrEnum
from typing import NamedTuple


class Provenance(StrEnum):
    NATIVE = "native"  # drafted, and the target's own choice
    DEFERRED = "deferred"  # drafted, loosened by FLy's entropy gate and deferred window
    CALIBRATED = "calibrated"  # drafted, loosened by CSD's memory and logit-gap gate
    LENIENT = "lenient"  # drafted, loosened by the lossy baseline
    TYPICAL = "typical"  # drafted, loosened by Medusa's typical acceptance
    CORRECTION = "correction"  # the target's choice at the first rejected position
    BONUS = "bonus"  # the target's choice after a fully accepted block
    TARGET = "target"  # the target's choice from a row without any draft

    @property
    def loosened(self) -> bool:
        return self in _LOOSENED


class Verdict(NamedTuple):
    """What verification saw in a delivered token's row.

    draft: the token that had been drafted there, rejected ones included; None where none had. choice: the target's
    own. entropy, gap: as in Evidence, of mismatches that the verifier might have loosened; None elsewhere.
    """

    draft: int | None
    choice: int
    entropy: float | None
    gap: float | None


_LOOSENED = frozenset({Provenance.DEFERRED, Provenance.CALIBRATED, Provenance.LENIENT, Provenance.TYPICAL})


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CONSTRAINT = "constraint"  # its grammar could not be followed any further
    ABORT = "abort"
    ERROR = "error"
