"""The machine's memory bandwidth, as what reads fastest here can use it: the yardstick of a decoding step."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch

_BYTES = 1 << 29  # far more than any cache holds
_READS = 3  # of each reader in a turn


@numba.njit(nogil=True, fastmath=True)
def _sum(numbers):  # type: ignore[no-untyped-def]
    """[n] float32; the sum only keeps the reads from being optimised away."""
    total = np.float32(0)
    for i in range(numbers.size):
        total += numbers[i]
    return total


class Bandwidth:
    """Reads a buffer in several ways, all with as many threads as torch takes, and remembers the fastest ever: whatever
    slowed the others down is not the memory's."""

    def __init__(self, size: int = _BYTES) -> None:
        numbers = torch.ones(size // 4)
        matrix, vector = numbers.view(-1, 1024), torch.ones(1024)
        # Plain threads: numba's own would spin on for a while beside the forward that is timed next.
        self._threads = ThreadPoolExecutor(torch.get_num_threads())
        parts = np.array_split(numbers.numpy(), torch.get_num_threads())
        self._size = numbers.numel() * numbers.itemsize
        self._readers: dict[str, Callable[[], Any]] = {
            "numba": lambda: list(self._threads.map(_sum, parts)),
            "torch.sum": numbers.sum,
            "torch.mv": lambda: torch.mv(matrix, vector),
        }
        for read in self._readers.values():
            read()  # compiled, and the pages touched
        self.best: dict[str, float] = dict.fromkeys(self._readers, 0.0)

    def measure(self) -> float:
        """Bytes a second of the fastest reader, now."""
        fastest = 0.0
        for name, read in self._readers.items():
            for _ in range(_READS):
                began = time.perf_counter()
                read()
                speed = self._size / (time.perf_counter() - began)
                self.best[name] = max(self.best[name], speed)
                fastest = max(fastest, speed)
        return fastest
