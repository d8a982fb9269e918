"""What the report is made from: each model's placement, files, config and memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.models.model_config import max_context
from core.models.scratch import HeaviestRound
from server.expectations import model_config
from server.heaviest import HeaviestRounds
from server.memory import ModelMemory, model_memory
from server.model_settings import ModelSettings
from server.placement import Machine, Placement, place
from server.settings import Settings
from server.weights import WeightStore


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """key: the model's in the settings. folder: its files, None if they are not here. config, memory: None if
    neither files nor settings say what the model is."""

    key: str
    settings: ModelSettings
    placed: Placement
    folder: Path | None
    config: Any | None
    memory: ModelMemory | None

    @property
    def role(self) -> str:
        return self.key.rpartition(".")[2]


def gather(settings: Settings, machine: Machine) -> list[ModelFacts]:
    """UnsupportedModel, InvalidModelFile or ExpectationError if the files here cannot be what is meant."""
    store = WeightStore(settings.cache_dir)
    found = []
    for key, model in settings.models.items():
        placed, folder = place(model, machine), store.here(model)
        config = model_config(key, model, folder)
        memory = None if config is None else model_memory(config, placed, _heaviest(settings, key, config))
        found.append(ModelFacts(key, model, placed, folder, config, memory))
    return found


def _heaviest(settings: Settings, key: str, config: Any) -> HeaviestRound:
    rounds = HeaviestRounds.of(settings, settings.max_context or max_context(config))
    return rounds.target if key == "models.target" else rounds.draft
