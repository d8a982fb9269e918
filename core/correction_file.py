"""The correction memory's file: one npz without pickles, replaced atomically.

    header                     uint8 [n], JSON: format, version, target, draft, created, runs, and per proposer
                               the samples and tokens behind its table
    samples                    int64 [S], strictly ascending: which prompts were counted
    <proposer>_keys            int64 [N], strictly ascending: draft token << 32 | target token
    <proposer>_counts          int64 [N], positive

Plain numpy reads it. The zip's checksums catch damage; everything else is checked before it is used.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.correction_origin import MemoryOrigin
from core.correction_table import TOKEN_LIMIT, MemorySnapshot, freeze

FORMAT = "slipstream-correction-memory"
VERSION = 1
COUNT_LIMIT = 1 << 48  # far beyond any real count; keeps sums of tables within int64

_ZIP = b"PK\x03\x04"

# What numpy and zipfile raise on damaged bytes; found by damaging files at random.
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    MemoryError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


class MemoryFileError(ValueError):
    """A correction memory cannot be used: unreadable, damaged, foreign, or of other models."""


@dataclass(frozen=True, slots=True)
class MemoryContents:
    """What a file holds. target, draft: model fingerprints. created: UTC, ISO 8601. tables: per proposer, folded.
    origin: what they were calibrated on."""

    target: str
    draft: str | None
    created: str
    tables: Mapping[str, MemorySnapshot]
    origin: MemoryOrigin


def write_memory(path: Path, contents: MemoryContents) -> None:
    """Write beside `path`, flush to disk, then rename over it. OSError if the folder cannot be written."""
    header: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "target": contents.target,
        "draft": contents.draft,
        "created": contents.created,
        "runs": list(contents.origin.runs),
        "tables": {
            name: {"samples": table.calibrated_samples, "tokens": table.calibrated_tokens}
            for name, table in contents.tables.items()
        },
    }
    arrays: dict[str, Any] = {
        "header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
        "samples": contents.origin.samples,
    }
    for name, table in contents.tables.items():
        arrays[f"{name}_keys"], arrays[f"{name}_counts"] = table.keys, table.occurrences
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def read_memory(path: Path) -> MemoryContents:
    """Read and check a file. MemoryFileError says what is wrong with it."""
    try:
        with path.open("rb") as file:
            if file.read(4) != _ZIP:
                raise MemoryFileError(f"{path} is no correction memory")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                return _contents(path, archive)
    except MemoryFileError:
        raise
    except FileNotFoundError:
        raise MemoryFileError(f"no correction memory at {path}") from None
    except _DAMAGE as error:
        raise MemoryFileError(f"cannot read correction memory {path}: {type(error).__name__}: {error}") from error


def _contents(path: Path, archive: Mapping[str, NDArray[Any]]) -> MemoryContents:
    """What an archive holds. MemoryFileError if it is not ours, ValueError or KeyError if it is broken."""
    if "header" not in archive:
        raise MemoryFileError(f"{path} is no correction memory")
    header = _object(json.loads(archive["header"].tobytes()))
    if header.get("format") != FORMAT:
        raise MemoryFileError(f"{path} is no correction memory")
    if header.get("version") != VERSION:
        raise MemoryFileError(f"{path} has format version {header.get('version')!r}; this program reads {VERSION}")
    return MemoryContents(
        target=_text(header["target"]),
        draft=None if header["draft"] is None else _text(header["draft"]),
        created=_text(header["created"]),
        tables={name: _table(archive, name, facts) for name, facts in _object(header["tables"]).items()},
        origin=MemoryOrigin(_runs(header["runs"]), _samples(archive["samples"])),
    )


def _runs(value: object) -> tuple[Mapping[str, object], ...]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list of runs, found {value!r}")
    return tuple(_object(run) for run in value)


def _samples(array: NDArray[Any]) -> NDArray[np.int64]:
    if array.dtype != np.int64 or array.ndim != 1 or bool(np.any(array[1:] <= array[:-1])):
        raise ValueError("samples are not an ascending int64 vector")
    return freeze(array)


def _table(archive: Mapping[str, NDArray[Any]], name: str, facts: object) -> MemorySnapshot:
    """One proposer's table. ValueError if its arrays are not what the format says."""
    keys, counts = archive[f"{name}_keys"], archive[f"{name}_counts"]
    for array in (keys, counts):
        if array.dtype != np.int64 or array.ndim != 1 or array.shape != keys.shape:
            raise ValueError(f"table {name} does not hold two int64 vectors of one length")
    if keys.size:
        if keys[0] < 0 or not bool(np.all(keys[1:] > keys[:-1])) or bool(np.any(keys & 0xFFFFFFFF >= TOKEN_LIMIT)):
            raise ValueError(f"table {name} has keys that are out of order or no token pairs")
        if counts.min() < 1 or counts.max() >= COUNT_LIMIT:
            raise ValueError(f"table {name} has counts outside 1 .. 2^48")
    amounts = _object(facts)
    return MemorySnapshot(freeze(keys), freeze(counts), {}, _amount(amounts["samples"]), _amount(amounts["tokens"]))


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {value!r}")
    return value


def _amount(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"expected a count, found {value!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {value!r}")
    return value
