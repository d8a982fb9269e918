"""The verifiers by name, and what their verdict makes of a draft block.

A verifier is a mask over the K drafts of a block: how each position is loosened, or None. The rest is
common to all of them. The block is accepted up to the first draft that is neither native nor loosened;
what stands there instead is the target's own choice.

    K = 4       d0      d1        d2      d3      (row 4)
    native      yes     no        no      yes
    loosened    -       deferred  -       -
    emitted     d0      d1        c2                         n = 2: native, deferred, correction
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from core.block_evidence import Evidence
from core.correction_table import MemorySnapshot
from core.provenance import Provenance
from core.verifiers import csd, fly, hybrid, lossy, strict, typical
from core.verifiers.params import (
    CsdParams,
    FlyParams,
    HybridParams,
    LossyParams,
    OffParams,
    StrictParams,
    TypicalParams,
    VerifierParams,
)

# The parameters' class differs from rule to rule; `params.type` picks the rule that fits.
Rule = Callable[[Evidence, Any, MemorySnapshot], list[Provenance | None]]
# Of mismatch j: (j, draft, choice, native, params, memory) -> whether the rule could loosen it. Cheap, and asked
# before the row is judged; a mismatch it says no to is certainly rejected, hence the end of its block.
PreCheck = Callable[[int, list[int], list[int], list[bool], Any, MemorySnapshot], bool]


@dataclass(frozen=True, slots=True)
class Verifier:
    """name: what a request calls it. params: its parameters' class. rule: the pure function. may_loosen: its
    pre-check; None if it never loosens, and so needs no row judged."""

    name: str
    params: type[VerifierParams]
    rule: Rule
    may_loosen: PreCheck | None


def _table(*verifiers: Verifier) -> Mapping[str, Verifier]:
    return MappingProxyType({verifier.name: verifier for verifier in verifiers})


VERIFIERS: Mapping[str, Verifier] = _table(
    Verifier("off", OffParams, strict.loosen, None),
    Verifier("strict", StrictParams, strict.loosen, None),
    Verifier("fly", FlyParams, fly.loosen, fly.may_loosen),
    Verifier("csd", CsdParams, csd.loosen, csd.may_loosen),
    Verifier("hybrid", HybridParams, hybrid.loosen, hybrid.may_loosen),
    Verifier("lossy", LossyParams, lossy.loosen, lossy.may_loosen),
    Verifier("typical", TypicalParams, typical.loosen, typical.may_loosen),
)


def loosen(evidence: Evidence, params: VerifierParams, memory: MemorySnapshot) -> list[Provenance | None]:
    """Per draft position: how the verifier of `params` loosens it, or None. Never a native or protected one."""
    return VERIFIERS[params.type].rule(evidence, params, memory)


def accepted_length(evidence: Evidence, loosened: Sequence[Provenance | None]) -> int:
    """n, the first draft that is neither native nor loosened; K if there is none."""
    for j, native in enumerate(evidence.native):
        if not native and loosened[j] is None:
            return j
    return len(evidence.native)


def resolve_block(evidence: Evidence, loosened: Sequence[Provenance | None]) -> list[tuple[int, Provenance]]:
    """The n + 1 tokens the block yields, each with its provenance: d[:n], then choice[n].

    choice[n] is a correction if n < K, a bonus if n = K > 0, and a plain target token if K = 0.
    """
    drafts, accepted = len(evidence.draft), accepted_length(evidence, loosened)
    tokens: list[tuple[int, Provenance]] = []
    for j in range(accepted):
        how = loosened[j]
        tokens.append((evidence.draft[j], Provenance.NATIVE if how is None else how))
    unrejected = Provenance.BONUS if drafts > 0 else Provenance.TARGET
    tokens.append((evidence.choice[accepted], Provenance.CORRECTION if accepted < drafts else unrejected))
    return tokens
