"""speculation.correction_memory: where CSD's table lies, and whether it goes on counting while serving."""

import re
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from server.settings_base import Section, conflict

_URL = re.compile(r"[a-z][a-z0-9+_]*://", re.IGNORECASE)


def is_url(text: str) -> bool:
    """Whether a memory's source is a database rather than a file."""
    return _URL.match(text) is not None


class CorrectionMemorySettings(Section):
    """source: a file, or a database's URL (server/memory_store/place.py). namespace: of the database.

    dynamic: count what loose answers show, and share the counts with every server of the database; answers then
    depend on what was asked before. cap: most pairs per proposer that it keeps then. sync_seconds: how often counts
    are exchanged; a server that is killed loses those since the last time.
    """

    source: str = Field(min_length=1)
    namespace: str = Field("default", min_length=1, max_length=200)
    dynamic: bool = False
    cap: int = Field(1_000_000, ge=1, le=4_000_000)
    sync_seconds: float = Field(30.0, gt=0)

    @model_validator(mode="after")
    def _database_where_needed(self) -> Self:
        if not is_url(self.source):
            for name in ("dynamic", "namespace"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise conflict(
                        f"correction_memory.{name} needs a database, such as correction_memory.source = "
                        f"sqlite:///memory.db; {self.source} is a file"
                    )
        for name in ("cap", "sync_seconds"):
            if not self.dynamic and getattr(self, name) != type(self).model_fields[name].default:
                raise conflict(f"correction_memory.{name} has no effect without correction_memory.dynamic = true")
        return self


def from_source(value: Any) -> Any:
    """A source alone stands for a memory with nothing else said."""
    return {"source": str(value)} if isinstance(value, str | Path) else value
