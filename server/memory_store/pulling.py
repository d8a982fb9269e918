"""Reading a memory: all of it, or what changed since it was last read.

The revision is read first and everything else after it, so that what others change meanwhile is at worst read once
more: rows hold sums, not differences.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from core.correction_table import MemorySnapshot, freeze
from server.memory_store import schema

_PACKED = np.dtype("<i8")
_NOTHING = np.zeros(0, np.int64), np.zeros(0, np.int64), -1


@dataclass(frozen=True, slots=True)
class Head:
    """A memory's own row. revision: of its last change; pruned: of the last one that removed pairs."""

    id: int
    target: str
    draft: str | None
    created: str
    revision: int
    pruned: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """tables: per proposer, as of `revision` at least. unpacked: rows that had to be read one by one."""

    revision: int
    tables: Mapping[str, MemorySnapshot]
    unpacked: int


def read_head(connection: Connection, namespace: str) -> Head | None:
    columns = schema.memories.c
    chosen = select(columns.id, columns.target, columns.draft, columns.created, columns.revision, columns.pruned).where(
        columns.namespace == namespace
    )
    row = connection.execute(chosen).one_or_none()
    return None if row is None else Head(*row)


def pull(connection: Connection, head: Head, since: Pulled | None = None, *, packed: bool = True) -> Pulled:
    """since: what was read before; only what changed after it is read, unless pairs were removed or it is an older
    copy. packed: begin with the packs otherwise, rather than read all rows."""
    if since is not None and (head.pruned > since.revision or head.revision < since.revision):
        since = None
    columns, tables, unpacked = schema.tables.c, {}, 0
    chosen = select(columns.id, columns.proposer, columns.samples, columns.tokens).where(columns.memory_id == head.id)
    for table_id, proposer, samples, tokens in connection.execute(chosen).all():
        known, revision = None if since is None else since.tables.get(proposer), -1
        if known is not None and since is not None:
            keys, counts, revision = known.keys, known.occurrences, since.revision
        else:
            keys, counts, revision = _read_pack(connection, table_id) if packed else _NOTHING
        new_keys, new_counts = _read_rows(connection, table_id, revision)
        keys, counts = _replaced(keys, counts, new_keys, new_counts)
        unpacked += new_keys.size
        tables[str(proposer)] = MemorySnapshot(freeze(keys), freeze(counts), {}, int(samples), int(tokens))
    return Pulled(head.revision, tables, unpacked)


def pack(array: NDArray[np.int64]) -> bytes:
    return array.astype(_PACKED).tobytes()


def _read_pack(connection: Connection, table_id: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    columns = schema.packs.c
    chosen = select(columns.pairs, columns["counts"], columns.revision).where(columns.table_id == table_id)
    row = connection.execute(chosen).one_or_none()
    if row is None:
        return _NOTHING
    return _unpack(row[0]), _unpack(row[1]), int(row[2])


def _unpack(packed: bytes) -> NDArray[np.int64]:
    return np.frombuffer(packed, _PACKED).astype(np.int64)


def _read_rows(connection: Connection, table_id: int, revision: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Those that changed after `revision`, ascending."""
    columns = schema.pairs.c
    chosen = select(columns.pair, columns["count"]).where(columns.table_id == table_id, columns.revision > revision)
    # The driver's own tuples: SQLAlchemy's rows would take several times as long.
    rows = connection.execute(chosen.order_by(columns.pair)).cursor.fetchall()
    flat = np.fromiter((number for row in rows for number in row), np.int64, 2 * len(rows)).reshape(-1, 2)
    return flat[:, 0].copy(), flat[:, 1].copy()


def _replaced(
    keys: NDArray[np.int64], counts: NDArray[np.int64], new_keys: NDArray[np.int64], new_counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The table with the counts of `new_keys` in place of their old ones; all ascending."""
    if not new_keys.size:
        return keys, counts
    if not keys.size:
        return new_keys, new_counts
    together, values = np.concatenate((new_keys, keys)), np.concatenate((new_counts, counts))
    distinct, first = np.unique(together, return_index=True)  # the first of equal ones is the new one
    return distinct, values[first]
