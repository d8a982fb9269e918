"""Where a correction memory lies: a file, or a namespace of a database, by one string.

memories/demo.npz                          a file (core/correction_file.py): a snapshot, quick to load and to copy
sqlite:///memories.db                      a database in a file, which several processes may share
postgresql+psycopg://user@host/database    a database that several machines may share
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from core.correction_memory import DEFAULT_CAP, CorrectionMemory, MemoryFileError
from server.memory_settings import is_url
from server.memory_store.store import MemoryStore


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """Exactly one of file and url is set. namespace: of the database; a file has none."""

    file: Path | None
    url: str | None
    namespace: str = "default"

    @classmethod
    def of(cls, text: str, namespace: str = "default") -> Self:
        return cls(None, text, namespace) if is_url(text) else cls(Path(text).expanduser(), None, namespace)

    def __str__(self) -> str:
        """For people: without a password."""
        return str(self.file) if self.url is None else self.store().where

    def store(self) -> MemoryStore:
        """Of a database. MemoryFileError for a file, which has none, and as MemoryStore."""
        if self.url is None:
            raise MemoryFileError(f"{self.file} is a file; a database's URL is needed, such as sqlite:///memory.db")
        return MemoryStore(self.url, self.namespace)

    def exists(self) -> bool:
        """MemoryFileError if a database cannot be asked."""
        if self.file is not None:
            return self.file.exists()
        store = self.store()
        try:
            return store.head() is not None
        finally:
            store.close()

    def load(self, cap: int = DEFAULT_CAP) -> CorrectionMemory:
        """MemoryFileError if there is none, or it cannot be used."""
        if self.file is not None:
            return CorrectionMemory.load(self.file, cap=cap)
        store = self.store()
        try:
            return store.load(cap)
        finally:
            store.close()

    def prune(self, cap: int | None, least: int) -> int:
        """Leave each table at most `cap` pairs and none below `least` occurrences: how many left."""
        if self.file is not None:
            memory = CorrectionMemory.load(self.file)
            before = sum(table.num_pairs for table in memory.tables.values())
            pruned = memory.pruned(cap, least)
            pruned.save(self.file)
            return before - sum(table.num_pairs for table in pruned.tables.values())
        store = self.store()
        try:
            return store.prune(cap, least)
        finally:
            store.close()

    def add(self, memory: CorrectionMemory) -> None:
        """Put a memory there, added to what is there already. MemoryFileError if that is of other models or the
        database cannot be used, OSError if the file cannot be written."""
        if self.file is not None:
            if self.file.exists():
                there = CorrectionMemory.load(self.file)
                there.merge(memory)
                memory = there
            memory.save(self.file)
            return
        store = self.store()
        try:
            store.begin(memory.target, memory.draft, memory.created)
            store.merge(memory)
        finally:
            store.close()
