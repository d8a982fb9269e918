"""strict: a draft is accepted only where it is the target's own choice, so nothing is loosened."""

from core.block_evidence import Evidence
from core.correction_table import MemorySnapshot
from core.provenance import Provenance
from core.verifiers.params import OffParams, StrictParams


def loosen(evidence: Evidence, params: StrictParams | OffParams, memory: MemorySnapshot) -> list[Provenance | None]:
    """K times None. Also serves `off`, which drafts nothing and so has K = 0."""
    return [None] * len(evidence.draft)
