"""What a correction memory was calibrated on: the runs that made it, and which prompts they counted."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


def sample_id(text: str) -> int:
    """What a prompt is known by, so that it counts once however often it is calibrated on: 63 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True, eq=False)
class MemoryOrigin:
    """runs: facts of each calibration, as JSON objects. samples: int64 [S], strictly ascending: ids of the prompts."""

    runs: tuple[Mapping[str, object], ...] = ()
    samples: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)

    def union(self, other: "MemoryOrigin") -> "MemoryOrigin":
        """Of both; what is in both once."""
        runs = (*self.runs, *(run for run in other.runs if run not in self.runs))
        return MemoryOrigin(runs, np.union1d(self.samples, other.samples))

    def shared(self, other: "MemoryOrigin") -> int:
        """How many prompts both counted."""
        return int(np.intersect1d(self.samples, other.samples, assume_unique=True).size)
