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

from core.correction_memory import MemorySnapshot
from core.evidence import Evidence
from core.provenance import Provenance
from core.verifiers import csd, fly, hybrid, lossy, strict
from core.verifiers.needs import NEEDS, Needs
from core.verifiers.params import (
    CsdParams,
    FlyParams,
    HybridParams,
    LossyParams,
    OffParams,
    StrictParams,
    VerifierParams,
)

# The parameters' class differs from rule to rule; `params.type` picks the rule that fits.
Rule = Callable[[Evidence, Any, MemorySnapshot], list[Provenance | None]]


@dataclass(frozen=True, slots=True)
class Verifier:
    """name: what a request calls it. params: its parameters' class. rule: the pure function. needs: its evidence."""

    name: str
    params: type[VerifierParams]
    rule: Rule
    needs: Needs


def _table(*rows: tuple[str, type[VerifierParams], Rule]) -> Mapping[str, Verifier]:
    return MappingProxyType({name: Verifier(name, params, rule, NEEDS[name]) for name, params, rule in rows})


VERIFIERS: Mapping[str, Verifier] = _table(
    ("off", OffParams, strict.loosen),
    ("strict", StrictParams, strict.loosen),
    ("fly", FlyParams, fly.loosen),
    ("csd", CsdParams, csd.loosen),
    ("hybrid", HybridParams, hybrid.loosen),
    ("lossy", LossyParams, lossy.loosen),
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
