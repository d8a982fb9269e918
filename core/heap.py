"""The C library's heap: memory that was freed, but that it keeps for whoever may want some next."""

import ctypes
import sys


def trim_heap() -> None:
    """Give freed memory back to the system, where the C library is glibc; loading a model leaves hundreds of megabytes
    between what is kept."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
