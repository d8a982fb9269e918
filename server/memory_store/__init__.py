"""Correction memories in a database that several servers may share; SQLAlchemy, so SQLite, PostgreSQL or another.

A memory lives in a namespace and belongs to one pair of models. Counts are rows that everybody adds to; beside them
lie packed snapshots, which load in a fraction of the time (schema.py).
"""

from server.memory_store.pulling import Pulled
from server.memory_store.store import MemoryStore

__all__ = ["MemoryStore", "Pulled"]
