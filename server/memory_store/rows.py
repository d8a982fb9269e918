"""Adding to the counts of a table, in as few statements as the database allows.

Whoever calls holds the memory's row (store.py), so nobody else changes the same pairs at the same time.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BigInteger, Connection, Insert, bindparam, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from server.memory_store import schema

_AT_ONCE = 20_000  # rows of one statement
_ASKED = 500  # keys of one IN (...)
_pairs = schema.pairs


def add_counts(
    connection: Connection, table_id: int, keys: NDArray[np.int64], counts: NDArray[np.int64], revision: int
) -> None:
    """Add `counts` to the pairs `keys`, int64 [N] both, keys distinct."""
    for start in range(0, keys.size, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        _add(connection, table_id, keys[part].tolist(), counts[part].tolist(), revision)


def _add(connection: Connection, table_id: int, keys: list[int], counts: list[int], revision: int) -> None:
    match connection.dialect.name:
        case "postgresql":
            _add_arrays(connection, table_id, keys, counts, revision)
        case "sqlite":
            statement = sqlite.insert(_pairs)
            connection.execute(_upsert(statement), _rows(table_id, keys, counts, revision))
        case _:
            _add_portably(connection, table_id, keys, counts, revision)


def _upsert(statement: sqlite.Insert | postgresql.Insert) -> Insert:
    """Counts of pairs that are there already are added to."""
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=["table_id", "pair"],
        set_={"count": _pairs.c["count"] + new["count"], "revision": new["revision"]},
    )


def _add_arrays(connection: Connection, table_id: int, keys: list[int], counts: list[int], revision: int) -> None:
    """One statement over two arrays, rather than one a row."""
    given = (
        func.unnest(
            bindparam("pairs", keys, postgresql.ARRAY(BigInteger)),
            bindparam("counts", counts, postgresql.ARRAY(BigInteger)),
        )
        .table_valued("pair", "times", name="given")
        .render_derived()
    )
    chosen = select(bindparam("table_id", table_id), given.c.pair, given.c.times, bindparam("revision", revision))
    names = ["table_id", "pair", "count", "revision"]
    connection.execute(_upsert(postgresql.insert(_pairs).from_select(names, chosen)))


def _add_portably(connection: Connection, table_id: int, keys: list[int], counts: list[int], revision: int) -> None:
    """For databases whose way to say it we do not know: look first, then add or insert."""
    known: set[int] = set()
    for start in range(0, len(keys), _ASKED):
        asked = _pairs.c.pair.in_(keys[start : start + _ASKED])
        known.update(connection.scalars(select(_pairs.c.pair).where(_pairs.c.table_id == table_id, asked)))
    rows = _rows(table_id, keys, counts, revision)
    if old := [{f"{name}_": value for name, value in row.items()} for row in rows if row["pair"] in known]:
        same = (_pairs.c.table_id == bindparam("table_id_")) & (_pairs.c.pair == bindparam("pair_"))
        added = {"count": _pairs.c["count"] + bindparam("count_"), "revision": bindparam("revision_")}
        connection.execute(update(_pairs).where(same).values(added), old)
    if new := [row for row in rows if row["pair"] not in known]:
        connection.execute(insert(_pairs), new)


def _rows(table_id: int, keys: list[int], counts: list[int], revision: int) -> list[dict[str, Any]]:
    return [
        {"table_id": table_id, "pair": key, "count": count, "revision": revision}
        for key, count in zip(keys, counts, strict=True)
    ]
