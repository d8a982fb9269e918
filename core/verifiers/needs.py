"""What each verifier looks at beyond `native` and `protected`, as data.

Entropies and gaps cost a pass over the rows of a block, so they are gathered only where a verifier of
the batch reads them, and only for mismatches: a native draft needs no reason to be accepted. Kept
apart from the registry, so that the evidence can import it without importing the rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Needs:
    """entropy, gap: the columns of the evidence. memory: the correction memory's counts."""

    entropy: bool = False
    gap: bool = False
    memory: bool = False


NEEDS: Mapping[str, Needs] = MappingProxyType(
    {
        "off": Needs(),
        "strict": Needs(),
        "fly": Needs(entropy=True),
        "csd": Needs(gap=True, memory=True),
        "hybrid": Needs(entropy=True, gap=True, memory=True),
        "lossy": Needs(gap=True),
    }
)
