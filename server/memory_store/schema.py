"""The tables of a memory store.

correction_memories    one a namespace. revision: counts every change; whoever changes anything updates this row
                       first, so that changes of one memory come one after the other, on any database.
                       pruned: the last revision that removed pairs.
correction_tables      per memory and proposer: samples and tokens behind its counts
correction_pairs       the counts. pair: draft token << 32 | target token. revision: of its last change
correction_packs       a table's pairs as of a revision, packed; reading 1.4 million rows takes seconds, this and
                       the rows that changed since a fraction of one
correction_writers     who adds while serving, and how often it has: what is sent twice counts once
correction_runs        the calibrations that made it
correction_samples     which prompts were counted
"""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

memories = Table(
    "correction_memories",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("namespace", String(200), nullable=False, unique=True),
    Column("target", String(200), nullable=False),
    Column("draft", String(200)),
    Column("created", String(40), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("pruned", BigInteger, nullable=False),
)

tables = Table(
    "correction_tables",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("memory_id", ForeignKey("correction_memories.id", ondelete="CASCADE"), nullable=False),
    Column("proposer", String(40), nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    UniqueConstraint("memory_id", "proposer"),
)

pairs = Table(
    "correction_pairs",
    metadata,
    Column("table_id", ForeignKey("correction_tables.id", ondelete="CASCADE"), primary_key=True),
    Column("pair", BigInteger, primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Index("correction_pairs_revision", "table_id", "revision"),
    sqlite_with_rowid=False,
)

packs = Table(
    "correction_packs",
    metadata,
    Column("table_id", ForeignKey("correction_tables.id", ondelete="CASCADE"), primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("pairs", LargeBinary(1 << 30), nullable=False),  # int64, little-endian, ascending
    Column("counts", LargeBinary(1 << 30), nullable=False),  # int64, little-endian
)

writers = Table(
    "correction_writers",
    metadata,
    Column("memory_id", ForeignKey("correction_memories.id", ondelete="CASCADE"), primary_key=True),
    Column("writer", String(64), primary_key=True),
    Column("additions", BigInteger, nullable=False),
)

runs = Table(
    "correction_runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("memory_id", ForeignKey("correction_memories.id", ondelete="CASCADE"), nullable=False),
    Column("facts", Text, nullable=False),  # JSON
    Column("samples", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
)

samples = Table(
    "correction_samples",
    metadata,
    Column("memory_id", ForeignKey("correction_memories.id", ondelete="CASCADE"), primary_key=True),
    Column("sample", BigInteger, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)
