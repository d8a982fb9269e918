"""csd: loosen where the memory knows the pair and the target's logits nearly tie.

CSD (ACL 2026), "calibrated speculative decoding". The memory says that the target has rejected this
token for that one again and again; the gap says that here, in this context, it hardly prefers its own.
Either alone costs accuracy. Every position stands for itself: the rows behind a rescued token are
already conditioned on it.
"""

import math
from collections.abc import Iterator

from core.block_evidence import Evidence
from core.correction_table import MemorySnapshot
from core.provenance import Provenance
from core.verifiers.params import CsdParams, HybridParams, VerifierParams


def loosen(evidence: Evidence, params: CsdParams | HybridParams, memory: MemorySnapshot) -> list[Provenance | None]:
    """Per draft CALIBRATED or None: gap[j] >= ln(tau) and the memory holds (d[j], choice[j]) lambda times."""
    draft, choice, gap, protected = evidence.draft, evidence.choice, evidence.gap, evidence.protected
    floor = math.log(params.ratio)
    least = least_count(params, memory.calibrated_tokens)
    loosened: list[Provenance | None] = [None] * len(draft)
    for j, native in enumerate(evidence.native):
        # The look-up comes last: it is the dearest of the four tests, and the gate spares most of them.
        if native or protected[j] or not gap[j] >= floor or memory.count(draft[j], choice[j]) < least:
            continue
        loosened[j] = Provenance.CALIBRATED
    return loosened


def learned_pairs(
    evidence: Evidence, loosened: list[Provenance | None], params: CsdParams | HybridParams, delivered: int
) -> Iterator[tuple[int, int]]:
    """What a memory that learns counts of a block of which so many tokens were delivered: the rescues, and the first
    mismatch that was not rescued, where the gap passes."""
    floor = math.log(params.ratio)
    for j, native in enumerate(evidence.native[:delivered]):
        if native:
            continue
        if not evidence.protected[j] and evidence.gap[j] >= floor:
            yield evidence.draft[j], evidence.choice[j]
        if loosened[j] is None:
            return


def least_count(params: CsdParams | HybridParams, calibrated_tokens: int) -> float:
    """Occurrences a pair needs; never below 1, so that a pair the memory lacks is never rescued.

    Example: 6 per million over a table of 2.5 million calibrated tokens asks for 15.
    """
    least = params.frequency_threshold
    if params.frequency_unit == "per_million":
        least *= calibrated_tokens / 1e6
    return max(1.0, least)


def may_loosen(
    j: int,
    draft: list[int],
    choice: list[int],
    native: list[bool],
    params: CsdParams | HybridParams,
    memory: MemorySnapshot,
) -> bool:
    """Whether mismatch j could be loosened, as far as is known before its row is judged: by the memory."""
    return memory.count(draft[j], choice[j]) >= least_count(params, memory.calibrated_tokens)


def memory_use(evidence: Evidence, accepted: int, params: VerifierParams, memory: MemorySnapshot) -> tuple[int, int]:
    """How many mismatches of a block asked the memory, up to the one at `accepted` that ended it, and how many of them
    found their pair often enough; a figure for telemetry, the same on every device.

    Each is counted once, whether its row was judged for it or not. (0, 0) under verifiers that have no memory.
    """
    if not isinstance(params, CsdParams | HybridParams):
        return 0, 0
    met = [j for j, native in enumerate(evidence.native[: accepted + 1]) if not native]
    least = least_count(params, memory.calibrated_tokens)
    return len(met), sum(memory.count(evidence.draft[j], evidence.choice[j]) >= least for j in met)
