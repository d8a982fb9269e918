"""fly: loosen where the target is undecided and the next `window` drafts agree with it.

FLy (ICLR 2026), "training-free loosely speculative decoding", with the paper's window: a mismatch is
deferred, and forgiven only if the W drafts behind it are all native. Looseness never vouches for
looseness, so a mismatch inside the window rejects the earlier one even if it is itself loosened.

    W = 6, K = 15   1 1 0 1 1 1 1 1 1 0 1 1 1 1 1      1 = native, every entropy above theta
                        |             |
                        j = 2         j = 9: five drafts behind it, one short of W, so it stays strict
                        six natives behind it, 3 .. 8, so it is loosened; accepted length 9
"""

from collections.abc import Sequence

from core.block_evidence import Evidence
from core.correction_table import MemorySnapshot
from core.provenance import Provenance
from core.verifiers.params import FlyParams, HybridParams


def loosen(evidence: Evidence, params: FlyParams | HybridParams, memory: MemorySnapshot) -> list[Provenance | None]:
    """Per draft DEFERRED or None: entropy[j] >= theta and native[j+1 .. j+W], all of them inside the block.

    theta is in the unit of the evidence's entropies (nats for `top3`). W = 0 leaves the gate alone.
    """
    return defer(evidence, params, evidence.native)


def defer(evidence: Evidence, params: FlyParams | HybridParams, agrees: Sequence[bool]) -> list[Provenance | None]:
    """`loosen` with a word of one's own on which drafts of a window agree; [K]."""
    entropy, protected = evidence.entropy, evidence.protected
    threshold, window = params.entropy_threshold, params.window
    loosened: list[Provenance | None] = [None] * len(evidence.native)
    # Walking backwards, the window of j is clean iff the nearest mismatch behind it lies beyond j + W.
    # The end of the block counts as one, at K: that keeps the last W drafts strict.
    behind = len(loosened)
    for j in range(behind - 1, -1, -1):
        if evidence.native[j]:
            continue
        if behind - j > window and entropy[j] >= threshold and not protected[j]:
            loosened[j] = Provenance.DEFERRED
        if not agrees[j]:
            behind = j
    return loosened


def may_loosen(
    j: int,
    draft: list[int],
    choice: list[int],
    native: list[bool],
    params: FlyParams | HybridParams,
    memory: MemorySnapshot,
) -> bool:
    """Whether mismatch j could be loosened, as far as is known before its row is judged: by its window."""
    behind = native[j + 1 : j + 1 + params.window]
    return len(behind) == params.window and all(behind)
