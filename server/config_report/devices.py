"""What the configured devices must hold, and what they have where they exist."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

import torch

from core.models.attention import choose_backend, common_block_size
from core.models.kv_cache import kv_shape
from core.models.loader import resolve_weights
from server.config_report.facts import ModelFacts
from server.device_memory import DeviceMemory, device_memory
from server.memory import CPU_SHARE, ModelMemory, Room, by_device, default_tokens, kv_room, tokens_that_fit
from server.placement import Machine
from server.settings import Settings
from server.weights.disk import human


def memory_here(machine: Machine, models: list[ModelFacts]) -> dict[str, DeviceMemory]:
    """Of the CPU, what its container may use, and of the GPUs that are meant and here: asking starts CUDA on them."""
    meant = {one.placed.cuda_index for one in models}
    gpus = [f"cuda:{index}" for index in range(machine.cuda_devices) if index in meant]
    return {device: device_memory(device) for device in ("cpu", *gpus)}


def block_size(models: list[ModelFacts], here: Mapping[str, DeviceMemory]) -> int:
    """Positions of a KV block with the attention that these models get; on an absent GPU, with flash-attn."""
    names = []
    for one in models:
        if one.config is None:
            continue
        device, wanted = torch.device(one.placed.device), one.placed.attention
        dtype = resolve_weights(one.placed.weights, torch.device(device.type))[1]
        if one.placed.device not in here:
            names.append("sdpa" if wanted == "sdpa" or dtype == torch.float32 else "flash_attn")
            continue
        with suppress(ValueError):  # wanted but impossible here: a line under `missing here`
            names.append(choose_backend(device, dtype, wanted, kv_shape(one.config)[1]))
    return common_block_size(names)


def memory_lines(settings: Settings, models: list[ModelFacts], here: Mapping[str, DeviceMemory]) -> Iterator[str]:
    """KV bytes per token and how many tokens; then what each device must hold and, if it is here, what it has."""
    unknown = [one.settings.label for one in models if one.memory is None]
    if unknown:
        yield f"memory: known once {' and '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} fetched"
        return
    known = [one.memory for one in models if one.memory is not None]
    block, tokens = block_size(models, here), configured_tokens(settings, known)
    total = _kilo(sum(one.kv_per_token for one in known))
    parts = ", ".join(f"{m.role} {_kilo(m.memory.kv_per_token)}" for m in models if m.memory is not None)
    per_token = f"{total} a token" + (f" ({parts})" if len(known) > 1 else "")
    yield f"KV cache: {per_token}; {_tokens(settings, known, here, block)}"
    blocks = None if tokens is None else -(-tokens // block)
    for need in by_device(known).values():
        has, parts = _has(need.device, here), _fixed(need)
        if blocks is None:
            needs = f"{human(least_bytes(settings, need))} or more: {parts}{_one_request(settings, need)}"
        else:
            kv = blocks * block * need.kv_per_token
            needs = f"{human(need.fixed + kv)}: {parts} + {human(kv)} of KV when full"
        yield f"memory: {need.device} needs {needs}; {has}"


def _fixed(need: ModelMemory) -> str:
    server = need.fixed - need.weights - need.scratch - need.graphs
    graphs = f" + {human(need.graphs)} for CUDA graphs" if need.graphs else ""
    return (
        f"{human(need.weights)} of weights + {human(server)} for the server + up to {human(need.scratch)} for a round"
        f"{graphs}"
    )


def _tokens(settings: Settings, models: list[ModelMemory], here: Mapping[str, DeviceMemory], block: int) -> str:
    tokens, fit = configured_tokens(settings, models), ""
    if tokens is None:
        tokens, fit = _fitting(settings, models, here, block), " fit here"
    if tokens is None:
        return f"as many tokens as fit, in blocks of {block}"
    return f"{tokens} tokens, {-(-tokens // block)} blocks of {block}{fit}"


def _one_request(settings: Settings, need: ModelMemory) -> str:
    kv = ""
    if settings.max_context is not None:
        kv = f" + {human(need.kv_per_token * settings.max_context)} of KV for one request of max_context"
    return kv if need.device == "cpu" else f"{kv}, in {settings.kv_cache.gpu_memory_utilization:.0%} of it"


def configured_tokens(settings: Settings, models: list[ModelMemory]) -> int | None:
    """Positions of KV where that is decided by the settings; None where a CUDA device's memory decides."""
    if settings.kv_cache.tokens is None and any(one.device != "cpu" for one in models):
        return None
    return default_tokens(settings.kv_cache.tokens, settings.max_context)


def least_bytes(settings: Settings, need: ModelMemory) -> int:
    """Memory of a device on which all but KV and one request of max_context just find room."""
    used = need.fixed + need.kv_per_token * (settings.max_context or 0)
    return int(used / settings.kv_cache.gpu_memory_utilization) if need.device != "cpu" else used


def _fitting(settings: Settings, models: list[ModelMemory], here: Mapping[str, DeviceMemory], block: int) -> int | None:
    """Positions that fit beside what else the devices hold now; None if one of them is not here."""
    rooms = []
    for need in by_device(models).values():
        if need.device not in here:
            return None
        has, share = here[need.device], settings.kv_cache.gpu_memory_utilization
        share = CPU_SHARE if need.device == "cpu" else share
        rooms.append(Room(kv_room(has.total, has.used + need.fixed, share), need.kv_per_token))
    return tokens_that_fit(rooms, block)


def _has(device: str, here: Mapping[str, DeviceMemory]) -> str:
    if device not in here:
        return "no such device here"
    total = human(here[device].total)
    return f"{total} here" if device == "cpu" else f"{human(here[device].free)} of {total} free here"


def _kilo(size: int) -> str:
    return f"{size / 1000:.1f} kB"
