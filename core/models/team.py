"""Team: several threads run one compiled function, the ones that torch's own kernels use.

torch's CPU kernels are spread over OpenMP's threads, which wait a moment for more work before they sleep; handing
work over to them takes microseconds where a pool of Python's threads takes tens, and nobody competes with them for
processors.
"""

import ctypes
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

_ADDRESS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


class TeamFunction:
    """A compiled function of one address, which finds out by itself what is left to do."""

    def __init__(self, compiled: Any) -> None:
        """compiled: numba's cfunc of signature void(voidptr)."""
        self._compiled = compiled  # owns the code
        self._address = compiled.address
        self._alone = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(compiled.address)
        self._released = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compiled.address)

    def __call__(self, data: int, threads: int, short: bool) -> None:
        """Run it on the data in so many threads at once, this one among them. short: a fraction of
        a millisecond, for which the interpreter is not released: getting it back may take longer."""
        if threads == 1:
            (self._alone if short else self._released)(data)
        elif (parallel := _openmp(short)) is not None:
            parallel(self._address, data, threads, 0)
        else:
            others = [_threads().submit(self._released, data) for _ in range(threads - 1)]
            self._released(data)
            for other in others:
                other.result()


@functools.cache
def _openmp(short: bool) -> Callable[..., None] | None:
    """OpenMP's own entry for a parallel region of the library that torch brought; None if it brought another."""
    for path in _library():
        library = ctypes.PyDLL(path) if short else ctypes.CDLL(path)
        function = library.GOMP_parallel  # of (function, its data, threads, flags)
        function.argtypes, function.restype = _ADDRESS, None
        return function
    return None


@functools.cache
def team_size_address() -> int:
    """Of a C function that tells threads of a team how many they are: OpenMP may have fewer than it is asked for. 0 if
    torch brought another library."""
    for path in _library():
        return ctypes.cast(ctypes.CDLL(path).omp_get_num_threads, ctypes.c_void_p).value or 0
    return 0


def _library() -> list[str]:
    return [str(path) for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))]


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, torch.get_num_threads() - 1), thread_name_prefix="team")
