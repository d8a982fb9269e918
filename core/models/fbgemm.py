"""FBGEMM, the library in torch whose kernels multiply packed matrices on x86 with AVX2: how to pack for it."""

import threading

import torch


class _FbgemmEngine:
    """Pack for FBGEMM whatever the process's quantised engine is: only its packing serves all our kernels.

    The engine is a setting of the whole process and layers are packed in threads, so the first to enter
    sets it and the last to leave restores it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = ""

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = torch.backends.quantized.engine
                torch.backends.quantized.engine = "fbgemm"
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch.backends.quantized.engine = self._before


packing = _FbgemmEngine()
