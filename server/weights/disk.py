"""Disk space: looked at before a big write, and explained when it runs out all the same."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server.weights.errors import WeightsError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EEXIST)


def human(size: int) -> str:
    """1536000000 -> 1.54 GB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def free_bytes(folder: Path) -> int:
    """Free where `folder` lies or will lie."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def disk_full(folder: Path, needed: int | None) -> WeightsError:
    free = free_bytes(folder)
    need = f"about {human(needed)} needed, " if needed else ""
    return WeightsError(
        f"disk full: {need}{human(free)} free in {folder}. Free some space there, "
        f"or name another folder with SLIPSTREAM_CACHE_DIR."
    )


def require_space(folder: Path, needed: int) -> None:
    """Raise WeightsError unless `needed` bytes are free where `folder` lies."""
    if free_bytes(folder) < needed:
        raise disk_full(folder, needed)


@contextmanager
def explained(folder: Path, needed: int | None = None) -> Iterator[None]:
    """Turn an OSError of the block into a WeightsError that says what `folder` lacks: space or permission."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(folder, needed) from error
        if error.errno in _UNUSABLE:
            message = f"cannot write to {folder}: {error.strerror}. Name another folder with SLIPSTREAM_CACHE_DIR."
            raise WeightsError(message) from error
        raise
