"""hybrid: loosen wherever FLy or CSD does.

CSD covers the last W drafts of a block, where FLy is blind. FLy's window stays native-only: a token
that CSD rescues does not count as agreement.
"""

from core.block_evidence import Evidence
from core.correction_table import MemorySnapshot
from core.provenance import Provenance
from core.verifiers import csd, fly
from core.verifiers.params import HybridParams


def loosen(evidence: Evidence, params: HybridParams, memory: MemorySnapshot) -> list[Provenance | None]:
    """Per draft DEFERRED, CALIBRATED or None; DEFERRED where both rules hold."""
    deferred = fly.loosen(evidence, params, memory)
    calibrated = csd.loosen(evidence, params, memory)
    return [first if first is not None else second for first, second in zip(deferred, calibrated, strict=True)]


def may_loosen(
    j: int, draft: list[int], choice: list[int], native: list[bool], params: HybridParams, memory: MemorySnapshot
) -> bool:
    """Whether mismatch j could be loosened, as far as is known before its row is judged: by either rule."""
    known = (j, draft, choice, native, params, memory)
    return fly.may_loosen(*known) or csd.may_loosen(*known)
