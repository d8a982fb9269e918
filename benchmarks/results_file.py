"""Result files: one JSON with everything, one Markdown table, PNG plots beside them."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import circumstances, one_line
from benchmarks.tables import Cells, markdown, show
from server.placement import Machine, place
from server.settings import Settings


@dataclass(frozen=True, slots=True)
class Results:
    """folder: made if need be. name: of the files, without suffix."""

    folder: Path
    name: str

    def write(self, kind: str, title: str, content: Mapping[str, Any], head: Cells, rows: Sequence[Cells]) -> Path:
        """Write JSON and Markdown, show the table on stdout, and return the JSON's path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        about = circumstances()
        path = self.path(".json")
        self._replace(path, json.dumps({"kind": kind, "title": title, **about, **content}, indent=1) + "\n")
        where = f"{about['date']}, {one_line(about['machine'])}, commit {about['commit']}"
        self._replace(self.path(".md"), f"# {title}\n\n{where}\n\n{markdown(head, rows)}")
        show(title, head, rows)
        print(f"written: {path}, {self.path('.md').name}", flush=True)
        return path

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
