"""What can be known to stand in the way before anything is downloaded."""

from server.placement import Machine, obstacles, place
from server.settings import Settings
from server.weights import WeightStore


def preflight(settings: Settings) -> list[str]:
    """Why serving cannot succeed on this machine, one sentence each; empty if nothing speaks against it.

    Memory is only looked at for models that are still to be fetched; the others are read in seconds anyway.
    """
    machine = Machine.here(settings)
    if wrong := list(obstacles(settings, machine)):
        return wrong
    store = WeightStore(settings.cache_dir)
    fetched = [
        (key, model, place(model, machine))
        for key, model in settings.models.items()
        if model.expect is not None and store.here(model) is None
    ]
    devices = {placed.device for *_, placed in fetched if placed.cuda_index is not None}
    if not devices:
        return []
    import torch

    from server.expectations import model_config
    from server.memory import model_memory, too_large

    sizes = {device: torch.cuda.get_device_properties(device).total_memory for device in devices}
    memories = [model_memory(model_config(key, model, None), placed) for key, model, placed in fetched]
    return list(too_large(memories, sizes))
