"""Result files: one JSON with everything, Markdown tables, PNG plots beside them."""

import functools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.errors import BenchError
from benchmarks.machine import circumstances, one_line
from benchmarks.tables import Cells, markdown, show
from server.placement import Machine, place
from server.settings import Settings

_circumstances = functools.cache(circumstances)  # of the beginning: a checkout may change while it is measured


@dataclass(frozen=True, slots=True)
class Table:
    """title: where it is not the first one of its page."""

    head: Cells
    rows: Sequence[Cells]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Results:
    """folder: made if need be. name: of the files, without suffix; BenchError if it would lead out of the folder."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        if not self.name or "\0" in self.name or Path(self.name).name != self.name:
            raise BenchError(f"--name should be the beginning of a file's name, got {self.name!r}")

    def opened(self) -> Self:
        """Made sure of, before the hours that it takes to have something to write: BenchError if the folder can
        neither be made nor written to."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except (OSError, ValueError) as error:
            raise BenchError(f"--out {self.folder} cannot be written to: {error}") from error
        return self

    def keep(self, kind: str, title: str, content: Mapping[str, Any]) -> None:
        """Write what is known so far, into NAME.json.partial; an interrupted run leaves it."""
        self._json(self.partial, kind, title, {"complete": False, **content})

    def write(self, kind: str, title: str, content: Mapping[str, Any], tables: Sequence[Table]) -> Path:
        """Write JSON and Markdown, show the tables on stdout, and return the JSON's path."""
        path = self.path(".json")
        about = self._json(path, kind, title, content)
        where = f"{about['date']}, {one_line(about['machine'])}, commit {about['commit']}"
        parts = [f"# {title}\n\n{where}\n"]
        for table in tables:
            parts.append((f"## {table.title}\n\n" if table.title else "") + markdown(table.head, table.rows))
            show(table.title or title, table.head, table.rows)
        self._replace(self.path(".md"), "\n".join(parts))
        self.partial.unlink(missing_ok=True)
        print(f"written: {path}, {self.path('.md').name}", flush=True)
        return path

    @property
    def partial(self) -> Path:
        return self.path(".json.partial")

    def _json(self, path: Path, kind: str, title: str, content: Mapping[str, Any]) -> dict[str, Any]:
        self.folder.mkdir(parents=True, exist_ok=True)
        about = _circumstances()
        self._replace(path, json.dumps({"kind": kind, "title": title, **about, **content}, indent=1) + "\n")
        return about

    def path(self, suffix: str) -> Path:
        return self.folder / f"{self.name}{suffix}"

    @staticmethod
    def _replace(path: Path, text: str) -> None:
        """At once, so that an interrupted run leaves the older file whole."""
        partial = path.with_name(path.name + ".tmp")
        partial.write_text(text, "utf-8")
        os.replace(partial, path)


def configuration(settings: Settings, file: Path) -> dict[str, Any]:
    """What of a configuration bears on speed."""
    machine = Machine.here(settings)
    placements = {key: (model, place(model, machine)) for key, model in settings.models.items()}
    models = {
        key: {"model": model.label, "device": placed.device, "weights": placed.weights}
        for key, (model, placed) in placements.items()
    }
    kept = settings.model_dump(mode="json", include={"speculation", "scheduler", "kv_cache", "max_context", "threads"})
    kept["speculation"].pop("correction_memory", None)
    return {"file": file.name, "models": models, **kept}
