"""Whole tables: adding one, trimming one, packing one. Each inside a change that its caller holds (store.py)."""

import json
from typing import Any

from sqlalchemy import Connection, CursorResult, and_, delete, insert, or_, select, update

from core.correction_memory import CorrectionMemory
from core.correction_table import MemorySnapshot
from server.memory_store import schema
from server.memory_store.pulling import Head, pack, pull
from server.memory_store.rows import add_counts

_FACTS_COUNTED = ("samples", "tokens")  # of a run: columns of their own, as they grow


def table_id(connection: Connection, head: Head, proposer: str) -> int:
    """The table's, made if there is none."""
    columns = schema.tables.c
    known = connection.scalar(select(columns.id).where(columns.memory_id == head.id, columns.proposer == proposer))
    if known is not None:
        return int(known)
    made = insert(schema.tables).values(memory_id=head.id, proposer=proposer, samples=0, tokens=0)
    return new_id(connection.execute(made))


def new_id(result: CursorResult[Any]) -> int:
    """Of the one row that was inserted."""
    key = result.inserted_primary_key
    assert key is not None
    return int(key[0])


def add_table(connection: Connection, head: Head, proposer: str, table: MemorySnapshot) -> None:
    """Add a table's counts, samples and tokens."""
    folded, columns = table.fold(), schema.tables.c
    known = table_id(connection, head, proposer)
    add_counts(connection, known, folded.keys, folded.occurrences, head.revision)
    grown = {
        "samples": columns.samples + table.calibrated_samples,
        "tokens": columns.tokens + table.calibrated_tokens,
    }
    connection.execute(update(schema.tables).where(columns.id == known).values(grown))


def note_addition(connection: Connection, head: Head, writer: str, number: int) -> bool:
    """Whether the writer's addition of this number is still to be made."""
    columns = schema.writers.c
    mine = and_(columns.memory_id == head.id, columns.writer == writer)
    made = connection.scalar(select(columns.additions).where(mine))
    if made is None:
        connection.execute(insert(schema.writers).values(memory_id=head.id, writer=writer, additions=number))
    elif made < number:
        connection.execute(update(schema.writers).where(mine).values(additions=number))
    return made is None or made < number


def add_memory(connection: Connection, head: Head, memory: CorrectionMemory) -> None:
    """All tables of a memory and what they were calibrated on."""
    for proposer, table in memory.tables.items():
        add_table(connection, head, proposer, table)
    samples = schema.samples.c
    known = set(connection.scalars(select(samples.sample).where(samples.memory_id == head.id)))
    new = [{"memory_id": head.id, "sample": one} for one in memory.origin.samples.tolist() if one not in known]
    if new:
        connection.execute(insert(schema.samples), new)
    for run in memory.origin.runs:
        facts = {name: value for name, value in run.items() if name not in _FACTS_COUNTED}
        counted = {name: run.get(name, 0) for name in _FACTS_COUNTED}
        connection.execute(insert(schema.runs).values(memory_id=head.id, facts=run_text(facts), **counted))


def run_text(facts: object) -> str:
    """The same for the same facts."""
    return json.dumps(facts, sort_keys=True, ensure_ascii=False)


def trim(connection: Connection, head: Head, cap: int | None, least: int) -> int:
    """Leave each table at most `cap` pairs, those of less than `least` occurrences not; how many left. As
    MemorySnapshot.fold trims."""
    removed, columns = 0, schema.pairs.c
    for proposer, table in pull(connection, head, packed=False).tables.items():
        kept = table.fold(cap)
        going = columns["count"] < least
        if kept.keys.size < table.keys.size:
            floor = int(kept.occurrences.min())
            last = int(kept.keys[kept.occurrences == floor].max())  # of those that occur so often, the smaller stayed
            going = or_(going, columns["count"] < floor, and_(columns["count"] == floor, columns.pair > last))
        gone = delete(schema.pairs).where(columns.table_id == table_id(connection, head, proposer), going)
        removed += connection.execute(gone).rowcount
    if removed:
        memories = schema.memories
        connection.execute(update(memories).where(memories.c.id == head.id).values(pruned=head.revision))
        pack_tables(connection, head)
    return removed


def pack_tables(connection: Connection, head: Head) -> None:
    """Lay down every table as its rows are at this change."""
    for proposer, table in pull(connection, head, packed=False).tables.items():
        known = table_id(connection, head, proposer)
        connection.execute(delete(schema.packs).where(schema.packs.c.table_id == known))
        packed = {"pairs": pack(table.keys), "counts": pack(table.occurrences)}
        connection.execute(insert(schema.packs).values(table_id=known, revision=head.revision, **packed))
