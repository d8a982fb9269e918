"""What can be known to stand in the way before anything is downloaded."""

from server.placement import Machine, obstacles, place
from server.settings import Settings
from server.telemetry import variables
from server.weights import WeightStore


def preflight(settings: Settings) -> list[str]:
    """Why serving cannot succeed on this machine, one sentence each; empty if nothing speaks against it.

    Memory is only looked at where a model for a GPU is still to be fetched: all that goes onto the same device counts.
    Where everything is here, loading it says the same in seconds.
    """
    machine = Machine.here(settings)
    if wrong := [*obstacles(settings, machine), *_telemetry_problems()]:
        return wrong
    store = WeightStore(settings.cache_dir)
    models = [(key, model, place(model, machine), store.here(model)) for key, model in settings.models.items()]
    devices = {placed.device for _, _, placed, folder in models if placed.cuda_index is not None and folder is None}
    if not devices:
        return []
    from core.models.errors import InvalidModelFile, UnsupportedModel
    from server.device_memory import device_memory
    from server.expectations import ExpectationError, model_config
    from server.memory import model_memory, too_large

    memories = []
    for key, model, placed, folder in models:
        try:
            config = model_config(key, model, folder) if placed.device in devices else None
        except (ExpectationError, InvalidModelFile, UnsupportedModel) as error:
            return [str(error)]
        if config is not None:
            memories.append(model_memory(config, placed))
    return list(too_large(memories, {device: device_memory(device) for device in devices}))


def _telemetry_problems() -> list[str]:
    """The exporters' libraries are loaded only where one is asked for."""
    if wrong := variables.problems():
        return wrong
    if not (variables.exporters("TRACES") or variables.exporters("METRICS")):
        return []
    from server.telemetry import exporters

    return exporters.obstacles()
