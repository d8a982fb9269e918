"""speculation.datastore: the files that the `datastore` drafter draws on."""

import glob
import os
from pathlib import Path
from typing import Any

from pydantic import Field

from server.assembly_error import AssemblyError
from server.settings_base import Section
from server.weights.disk import human

MOST_BYTES = 16  # of a token, on average over a text: about four times what tokenizers reach


class DatastoreError(AssemblyError):
    """A file cannot be found or read, or there are more tokens than allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(f"speculation.datastore: {message}")


class DatastoreSettings(Section):
    """files: paths and patterns (`src/**/*.py`) of UTF-8 text files, relative to where the server is started.
    max_tokens: more than so many are refused, far more by the files' sizes alone; each takes 8 bytes of memory, and
    some 50 while they are indexed."""

    files: tuple[str, ...] = Field(min_length=1)
    max_tokens: int = Field(4_000_000, ge=1, le=200_000_000)

    def paths(self) -> list[Path]:
        """The files there are, each once, in the order of their names. DatastoreError for a path or a pattern with
        none, for a folder, and for more bytes than max_tokens can be: those need not be read to be refused."""
        found: set[Path] = set()
        for wanted in self.files:
            pattern = os.path.expanduser(wanted)
            if Path(pattern).is_dir():
                raise DatastoreError(f"{wanted} is a folder; {Path(wanted) / '**' / '*'} names all files in it")
            # A name with brackets may be just that.
            names = [pattern] if os.path.lexists(pattern) else glob.glob(pattern, recursive=True)
            files = {path for name in names if not (path := Path(name)).is_dir()}
            if not files:
                raise DatastoreError(f"no file matches {wanted} (from {Path.cwd()})")
            found |= files
        self._check_size(found)
        return sorted(found)

    def _check_size(self, paths: set[Path]) -> None:
        sizes = {path: path.stat().st_size for path in paths if path.exists()}
        size = sum(sizes.values())
        if size > MOST_BYTES * self.max_tokens:
            largest = max(sizes, key=lambda path: (sizes[path], path))
            raise DatastoreError(
                f"{len(paths)} files of {human(size)}, the largest {largest}, hold more than max_tokens = "
                f"{self.max_tokens} tokens, even of {MOST_BYTES} bytes each; name fewer files, or raise it"
            )


def from_files(value: Any) -> Any:
    """A path, or a list of them, stands for a datastore with nothing else said."""
    if isinstance(value, str | Path):
        return {"files": [str(value)]}
    return {"files": value} if isinstance(value, list | tuple) else value
