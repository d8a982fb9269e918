"""Where a calibration puts what it counts, so that an interruption loses no more than the prompts in flight.

Into a database it counts directly. A file is made of a database beside it, FILE.partial, which an interrupted run
leaves behind for the next one to go on with.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from core.correction_memory import CorrectionMemory
from server.calibration.errors import CalibrationError
from server.memory_store import MemoryStore
from server.memory_store.place import MemoryPlace


@dataclass(frozen=True, slots=True)
class Destination:
    """resume: go on with an interrupted run, if there is one. merge: add to a memory that is there."""

    place: MemoryPlace
    resume: bool
    merge: bool

    def check(self) -> None:
        """CalibrationError if something is there that nobody said what to do with; before minutes go into loading."""
        if self.place.file is None:
            if self.place.exists() and not (self.resume or self.merge):
                raise CalibrationError(
                    f"there is a memory in {self.place}: --merge adds to it, --resume goes on with it"
                )
            return
        file = self.place.file
        if not file.absolute().parent.is_dir():
            raise CalibrationError(f"there is no folder {file.absolute().parent}")
        if self._partial.exists():
            if not self.resume:
                raise CalibrationError(
                    f"{self._partial} is left of an interrupted run: --resume goes on with it; or delete it"
                )
        elif file.exists() and not self.merge:
            raise CalibrationError(f"{file} exists: --merge adds to it")

    def open(self, target: str, draft: str | None) -> MemoryStore:
        """What to count into. MemoryFileError if it is of other models."""
        if self.place.file is None:
            store = self.place.store()
        else:
            if not self._partial.exists() and self.place.file.exists():
                self._begin_with(self.place.file)
            store = MemoryStore(_sqlite(self._partial))
        store.begin(target, draft)
        return store

    def finish(self, store: MemoryStore) -> CorrectionMemory:
        """Complete: write the file, or pack the database's tables. What is there now."""
        if self.place.file is None:
            store.pack()
            memory = store.load()
            store.close()
            return memory
        memory = store.load()
        memory.save(self.place.file)
        store.close()
        self._partial.unlink()
        return memory

    @property
    def _partial(self) -> Path:
        file = self.place.file
        assert file is not None
        return file.with_name(f"{file.name}.partial")

    def _begin_with(self, file: Path) -> None:
        """What the file holds, in the database beside it: whole, or not at all."""
        scratch = self._partial.with_name(f".{self._partial.name}.{os.getpid()}.tmp")
        scratch.unlink(missing_ok=True)
        try:
            MemoryPlace(None, _sqlite(scratch)).add(CorrectionMemory.load(file))
            scratch.replace(self._partial)
        finally:
            scratch.unlink(missing_ok=True)


def _sqlite(file: Path) -> str:
    return f"sqlite:///{file.absolute()}"
