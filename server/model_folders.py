"""Where both models of a configuration lie on this machine."""

from dataclasses import dataclass
from pathlib import Path

from server.settings import Settings
from server.weights import WeightStore


@dataclass(frozen=True, slots=True)
class Folders:
    """draft is None where there is no draft model; equal to target where it is the same files."""

    target: Path
    draft: Path | None


def fetch(settings: Settings) -> Folders:
    """Get both models' weights into the cache. WeightsError if that fails."""
    store, models = WeightStore(settings.cache_dir), settings.models
    return Folders(store.resolve(models.target), store.resolve(models.draft) if models.draft else None)
