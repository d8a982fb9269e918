"""lossy: a logit-gap gate alone, the baseline of CSD's tables.

Follows the lenience of Leviathan et al. (2023): a draft passes if the target finds it at least
`threshold` times as likely as its favourite. The tables give only the number; the reading is ours.
"""

import math

from core.block_evidence import Evidence
from core.correction_table import MemorySnapshot
from core.provenance import Provenance
from core.verifiers.params import LossyParams


def loosen(evidence: Evidence, params: LossyParams, memory: MemorySnapshot) -> list[Provenance | None]:
    """Per draft LENIENT or None: gap[j] >= ln(threshold)."""
    floor = math.log(params.threshold)
    return [
        Provenance.LENIENT if not native and not protected and gap >= floor else None
        for native, protected, gap in zip(evidence.native, evidence.protected, evidence.gap, strict=True)
    ]


def may_loosen(
    j: int, draft: list[int], choice: list[int], native: list[bool], params: LossyParams, memory: MemorySnapshot
) -> bool:
    """Always: only the row itself tells."""
    return True
