"""What each verifier asks beyond its evidence, as data, for those who advise on requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Needs:
    """memory: the correction memory's counts."""

    memory: bool = False


NEEDS: Mapping[str, Needs] = MappingProxyType(
    {
        "off": Needs(),
        "strict": Needs(),
        "fly": Needs(),
        "csd": Needs(memory=True),
        "hybrid": Needs(memory=True),
        "lossy": Needs(),
        "typical": Needs(),
    }
)
