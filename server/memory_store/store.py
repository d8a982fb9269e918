"""MemoryStore: one namespace of a database that holds correction memories.

Every change is one transaction that first updates the memory's own row. So changes of a memory come one after the
other, a reader sees each as a whole, and a process that dies leaves either all of a change or nothing.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, create_engine, insert, inspect, make_url, select, update
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from core.correction_memory import DEFAULT_CAP, CorrectionMemory, MemoryFileError
from core.correction_origin import MemoryOrigin
from core.correction_table import MemorySnapshot, freeze
from server.memory_store import schema
from server.memory_store.bulk import add_memory, add_table, new_id, note_addition, pack_tables, run_text, trim
from server.memory_store.pulling import Head, Pulled, pull, read_head

_AGAIN_SECONDS = 0.2
_BUSY_SECONDS = 60  # how long SQLite waits for another process's change

Counts = Mapping[str, Mapping[int, int]]
"""Per proposer: pair key -> how often."""


class MemoryStore:
    """Safe to use from several threads. name: for people, without the password. All methods but the constructor
    raise MemoryFileError if the database cannot be used, or the namespace holds no memory."""

    def __init__(self, url: str, namespace: str = "default") -> None:
        """Connects to nothing yet. MemoryFileError if the URL means nothing or its driver is not installed."""
        try:
            self._url = make_url(url)
            self.name = self._url.render_as_string(hide_password=True)
            waits = {"timeout": _BUSY_SECONDS} if self._url.get_backend_name() == "sqlite" else {}
            # A file is opened each time, which is cheap: a connection that is kept stays with one that was replaced.
            pool = None if self._file is None else NullPool
            self._engine = create_engine(self._url, poolclass=pool, pool_pre_ping=True, connect_args=waits)
        except (ArgumentError, NoSuchModuleError) as error:
            raise MemoryFileError(
                f"not a database's URL SQLAlchemy knows, such as sqlite:///memory.db: {error}"
            ) from None
        except ImportError as error:
            raise MemoryFileError(
                f"{self.name}: the database's driver is not installed ({error.name or error}); "
                "for PostgreSQL: pip install 'slipstream[postgres]'"
            ) from error
        self.namespace = namespace

    def close(self) -> None:
        self._engine.dispose()

    # ---- reading

    def head(self) -> Head | None:
        """None if there is no such database, namespace or table yet; nothing is made."""
        if self._file is not None and not self._file.is_file():
            return None
        with self._explained(), self._engine.connect() as connection:
            if not inspect(connection).has_table(schema.memories.name):
                return None
            return read_head(connection, self.namespace)

    def pull(self, since: Pulled | None = None) -> Pulled:
        """The tables as they are now; since: what was read before, which is all but free if nothing changed."""
        head = self._needed()
        if since is not None and since.revision == head.revision:
            return since
        with self._explained(), self._engine.connect() as connection:
            return pull(connection, head, since)

    def load(self, cap: int = DEFAULT_CAP) -> CorrectionMemory:
        """All of the memory: 1.4 million packed pairs take a fraction of a second."""
        head, pulled = self._needed(), self.pull()
        return CorrectionMemory(
            head.target, head.draft, cap=cap, created=head.created, tables=pulled.tables, origin=self._origin(head)
        )

    def _origin(self, head: Head) -> MemoryOrigin:
        runs, samples = schema.runs.c, schema.samples.c
        with self._explained(), self._engine.connect() as connection:
            chosen = select(runs.facts, runs.samples, runs.tokens).where(runs.memory_id == head.id).order_by(runs.id)
            facts = tuple(
                {**json.loads(text), "samples": counted, "tokens": tokens}
                for text, counted, tokens in connection.execute(chosen)
            )
            known = connection.scalars(select(samples.sample).where(samples.memory_id == head.id)).all()
        return MemoryOrigin(facts, freeze(np.array(sorted(known), np.int64)))

    def known_samples(self, wanted: Iterable[int]) -> set[int]:
        """Those of the prompts that were counted before."""
        head, columns = self._needed(), schema.samples.c
        with self._explained(), self._engine.connect() as connection:
            counted = connection.scalars(select(columns.sample).where(columns.memory_id == head.id))
            return set(wanted).intersection(counted)

    # ---- changing

    def begin(self, target: str, draft: str | None, created: str | None = None) -> Head:
        """The namespace's memory, made if there is none. MemoryFileError if it is of other models (fingerprints)."""
        with self._explained():
            self._make_tables()
        if self.head() is None:
            new = {
                "namespace": self.namespace,
                "target": target,
                "draft": draft,
                "created": created or datetime.now(UTC).isoformat(timespec="seconds"),
                "revision": 0,
                "pruned": 0,
            }
            try:
                with self._explained(), self._engine.begin() as connection:
                    connection.execute(insert(schema.memories), new)
            except _TakenError:
                pass  # another process was quicker
        head = self._needed()
        self.check_models(target, draft)
        return head

    def check_models(self, target: str, draft: str | None) -> None:
        """MemoryFileError unless what is counted here is of the models with these fingerprints."""
        head = self._needed()
        if (head.target, head.draft) != (target, draft):
            ours, theirs = f"target {head.target!r}, draft {head.draft!r}", f"target {target!r}, draft {draft!r}"
            raise MemoryFileError(f"the correction memory in {self.where} is of {ours}, not {theirs}")

    @property
    def where(self) -> str:
        return f"namespace {self.namespace!r} of {self.name}"

    def add(self, counts: Counts, writer: str, number: int) -> None:
        """Add what was counted, all of it or nothing, and once: whoever cannot tell whether it was added may send it
        again. writer: a name nobody else has. number: of its additions, from 1."""
        with self._change() as (connection, head):
            if not note_addition(connection, head, writer, number):
                return
            for proposer, pairs in counts.items():
                add_table(connection, head, proposer, MemorySnapshot(recent=pairs))

    def count_sample(self, run: int, sample: int, counts: Counts, tokens: int) -> bool:
        """Add what one prompt gave: once, however often it is asked. Whether it was new."""
        try:
            with self._change() as (connection, head):
                connection.execute(insert(schema.samples), {"memory_id": head.id, "sample": sample})
                for proposer, pairs in counts.items():
                    add_table(
                        connection,
                        head,
                        proposer,
                        MemorySnapshot(recent=pairs, calibrated_samples=1, calibrated_tokens=tokens),
                    )
                columns = schema.runs.c
                grown = {"samples": columns.samples + 1, "tokens": columns.tokens + tokens}
                connection.execute(update(schema.runs).where(columns.id == run).values(grown))
        except _TakenError:
            return False
        return True

    def begin_run(self, facts: Mapping[str, Any]) -> int:
        """The run with these facts, whenever it began; it goes on if there is one."""
        text, columns = run_text(facts), schema.runs.c
        with self._change() as (connection, head):
            for known, had in connection.execute(select(columns.id, columns.facts).where(columns.memory_id == head.id)):
                if {**json.loads(had), "began": None} == {**facts, "began": None}:
                    return int(known)
            made = insert(schema.runs).values(memory_id=head.id, facts=text, samples=0, tokens=0)
            return new_id(connection.execute(made))

    def merge(self, memory: CorrectionMemory) -> None:
        """Add a whole memory and its origin. MemoryFileError if it is of other models."""
        self.check_models(memory.target, memory.draft)
        with self._change() as (connection, head):
            add_memory(connection, head, memory)
            pack_tables(connection, head)

    def prune(self, cap: int | None = None, least: int = 1) -> int:
        """Leave each table at most `cap` pairs and none below `least` occurrences, and pack what stays: how many
        left. The least frequent go first."""
        with self._change() as (connection, head):
            return trim(connection, head, cap, least)

    def pack(self) -> None:
        """Lay down the tables so that they load quickly; seconds for millions of pairs, in which nobody adds any."""
        with self._change() as (connection, head):
            pack_tables(connection, head)

    # ---- how

    def _make_tables(self) -> None:
        """Those that are not there. Of two processes that make them at once one fails, and then finds them made."""
        for left in (2, 1, 0):
            try:
                schema.metadata.create_all(self._engine)
                return
            except SQLAlchemyError:
                if not left:
                    raise
                time.sleep(_AGAIN_SECONDS)

    @contextmanager
    def _change(self) -> Iterator[tuple[Connection, Head]]:
        """One transaction. Updating the memory's row comes first: it makes whoever wants to change it wait."""
        memories = schema.memories
        mine = memories.c.namespace == self.namespace
        self._needed()
        with self._explained(), self._engine.begin() as connection:
            connection.execute(update(memories).where(mine).values(revision=memories.c.revision + 1))
            head = read_head(connection, self.namespace)
            if head is None:
                raise MemoryFileError(f"no correction memory in {self.where}")
            yield connection, head

    def _needed(self) -> Head:
        head = self.head()
        if head is None:
            raise MemoryFileError(f"no correction memory in {self.where}")
        return head

    @property
    def _file(self) -> Path | None:
        """SQLite's; None for servers, and for what SQLite keeps in memory or finds by a URI of its own."""
        file = self._url.database
        if self._url.get_backend_name() != "sqlite" or not file or file == ":memory:" or file.startswith("file:"):
            return None
        return Path(file)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise _TakenError(f"{self.where}: {_reason(error)}") from error
        except SQLAlchemyError as error:
            raise MemoryFileError(f"cannot use {self.where}: {_reason(error)}") from error


class _TakenError(MemoryFileError):
    """Another process put it there first."""


def _reason(error: SQLAlchemyError) -> str:
    """The driver's own words, on one line, without the statement."""
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split()) or type(cause).__name__
