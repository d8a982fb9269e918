"""Functions that numba compiles for this machine, and keeps on disk so that the next start finds them."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numba import cfunc

_HERE = Path(__file__).parent


def digest(files: Sequence[str]) -> str:
    """Of these files of this folder, as they lie on disk."""
    return hashlib.sha256(b"".join((_HERE / name).read_bytes() for name in files)).hexdigest()[:8]


def compiled(
    signature: Any, function: Callable[..., None], sources: tuple[Sequence[str], str] = ((), ""), **options: Any
) -> Any:
    """numba's cfunc: at once where it lies in numba's cache, else within seconds.

    numba looks at the date of the file of the function and not at what it calls. sources: names of the files of this
    folder from which more is called, and the digest that the function's own file gives for them. Where that is another
    than they have, the code is neither taken from the cache nor kept.
    """
    files, known = sources
    if files and digest(files) != known:
        return cfunc(signature, **options)(function)
    try:
        return cfunc(signature, cache=True, **options)(function)
    except (RuntimeError, OSError):  # no folder to keep it in, or no room there
        return cfunc(signature, **options)(function)
