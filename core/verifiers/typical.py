"""typical: loosen what the target itself finds likely enough, the more undecided it is the more of it.

Typical acceptance, as Medusa has it (Cai et al. 2024, arXiv 2401.10774): a draft passes if the target gives it
more probability than min(epsilon, delta exp(-H)), H being the whole row's entropy. exp(-H) is what each of
equally likely tokens with that entropy would have: a draft may be so much rarer than the row's typical token.

    delta exp(-H) = epsilon at H = ln(0.3 / 0.09) = 1.20 nats
    the target is sure        H = 0.2   min(0.09, 0.246) = 0.09
    ten tokens alike          H = 2.3   min(0.09, 0.030) = 0.03

The paper judges by the distribution that tokens are drawn from: at temperature 0 that leaves the best token alone,
so its code is strict there. We judge greedy requests by the plain softmax, as our other loose verifiers do, and
sampled ones by what temperature and filters make of it. What replaces a rejected draft is the target's own choice.
"""

import math

from core.block_evidence import Evidence
from core.correction_table import MemorySnapshot
from core.provenance import Provenance
from core.verifiers.params import TypicalParams


def loosen(evidence: Evidence, params: TypicalParams, memory: MemorySnapshot) -> list[Provenance | None]:
    """Per draft TYPICAL or None: probability[j] > min(epsilon, delta exp(-entropy[j]))."""
    loosened: list[Provenance | None] = [None] * len(evidence.draft)
    for j, native in enumerate(evidence.native):
        if native or evidence.protected[j]:
            continue
        if evidence.probability[j] > least_probability(evidence.entropy[j], params):
            loosened[j] = Provenance.TYPICAL
    return loosened


def least_probability(entropy: float, params: TypicalParams) -> float:
    """What a draft's probability must exceed in a row of this entropy (nats); NaN where that is."""
    floor = params.delta * math.exp(-entropy)
    return params.epsilon if floor > params.epsilon else floor


def may_loosen(
    j: int, draft: list[int], choice: list[int], native: list[bool], params: TypicalParams, memory: MemorySnapshot
) -> bool:
    """Always: only the row itself tells."""
    return True
