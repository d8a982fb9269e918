"""hybrid: loosen wherever FLy or CSD does.

CSD covers the last W drafts of a block, where FLy is blind. FLy's window stays native-only: a token
that CSD rescues does not count as agreement, unless `agreement` says so. With `rescue_entropy` CSD, too, wants the
target to be undecided.
"""

from core.block_evidence import Evidence
from core.correction_table import MemorySnapshot
from core.provenance import Provenance
from core.verifiers import csd, fly
from core.verifiers.params import HybridParams


def loosen(evidence: Evidence, params: HybridParams, memory: MemorySnapshot) -> list[Provenance | None]:
    """Per draft DEFERRED, CALIBRATED or None; DEFERRED where both rules hold."""
    calibrated = csd.loosen(evidence, params, memory)
    if params.rescue_entropy > 0.0:
        undecided = [entropy >= params.rescue_entropy for entropy in evidence.entropy]
        calibrated = [how if open_ else None for how, open_ in zip(calibrated, undecided, strict=True)]
    agrees = evidence.native
    if params.agreement == "rescued":
        agrees = [native or how is not None for native, how in zip(agrees, calibrated, strict=True)]
    deferred = fly.defer(evidence, params, agrees)
    return [first if first is not None else second for first, second in zip(deferred, calibrated, strict=True)]


def may_loosen(
    j: int, draft: list[int], choice: list[int], native: list[bool], params: HybridParams, memory: MemorySnapshot
) -> bool:
    """Whether mismatch j could be loosened, as far as is known before its row is judged: by either rule."""
    agrees, end = native, j + 1 + params.window
    if params.agreement == "rescued":
        agrees = list(native)
        for i in range(j + 1, min(end, len(draft))):
            agrees[i] = native[i] or csd.may_loosen(i, draft, choice, native, params, memory)
    return fly.may_loosen(j, draft, choice, agrees, params, memory) or csd.may_loosen(
        j, draft, choice, native, params, memory
    )
