"""How many positions the KV cache holds: what the configuration says, or what fits beside the loaded weights."""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from core.models.kv_cache import KVCache
from core.models.loader import LoadedModel
from core.models.scratch import measure_graphs, measure_scratch
from server.assembly_error import AssemblyError
from server.device_memory import device_memory
from server.heaviest import HeaviestRounds
from server.memory import CPU_SHARE, Room, default_tokens, kv_room, tokens_that_fit
from server.settings import Settings
from server.weights.disk import human

log = logging.getLogger(__name__)

_LEAST = 256  # as in KvCacheSettings


def kv_tokens(
    settings: Settings,
    models: Sequence[LoadedModel],
    block_size: int,
    scratch: Callable[[], Mapping[torch.device, int]] = dict,
) -> int:
    """Positions for all sequences together. AssemblyError if what fits would not hold one request of max_context.

    scratch: measures what rounds take on each CUDA device beside weights and KV; only asked where what fits decides.
    Then a model on the CPU counts as well, for its KV is as long as the other's.
    """
    devices = {model.device for model in models}
    if settings.kv_cache.tokens is not None or all(device.type != "cuda" for device in devices):
        return default_tokens(settings.kv_cache.tokens, settings.max_context)
    taken = scratch()
    gc.collect()
    torch.cuda.empty_cache()  # what loading took and gave back would count as used
    rooms = {device: _room(device, models, settings, taken.get(device, 0)) for device in devices}
    tokens, least = tokens_that_fit(rooms.values(), block_size), settings.max_context or _LEAST
    tightest = min(rooms, key=lambda device: rooms[device].bytes / rooms[device].kv_per_token)
    beside = f"beside weights and {human(taken[tightest])} for a round" if taken.get(tightest) else "beside the weights"
    if tokens < least:
        raise AssemblyError(
            f"{beside} {human(rooms[tightest].bytes)} of {tightest} are left for KV, enough for {tokens} tokens of the "
            f"{least} that one request may take: lower max_context, scheduler.max_running or "
            "speculation.max_num_draft_tokens, raise kv_cache.gpu_memory_utilization, or choose a larger device"
        )
    log.info("KV cache: %d tokens fit, %s", tokens, f"{beside} on {tightest}")
    return tokens


def measured_scratch(
    models: Sequence[LoadedModel],
    backends: Sequence[str],
    block_size: int,
    rounds: HeaviestRounds,
    graphs: Sequence[bool],
) -> dict[torch.device, int]:
    """Bytes of the heaviest rounds on each device, really run: models that share one run in turn. graphs:
    whether each model's forwards are recorded in CUDA graphs, which stay beside the rounds."""
    taken: dict[torch.device, int] = {}
    for model, backend, heaviest in zip(models, backends, (rounds.target, rounds.draft), strict=False):
        within = replace(heaviest, max_context=min(heaviest.max_context, model.max_context))
        peak = measure_scratch(model, backend, block_size, within)
        taken[model.device] = max(taken.get(model.device, 0), peak)
    for model, backend, recorded in zip(models, backends, graphs, strict=True):
        if recorded:
            taken[model.device] += measure_graphs(model, backend, block_size)
    return taken


def _room(device: torch.device, models: Sequence[LoadedModel], settings: Settings, scratch: int) -> Room:
    memory = device_memory(str(device))
    share = CPU_SHARE if device.type == "cpu" else settings.kv_cache.gpu_memory_utilization
    per_token = sum(KVCache.bytes_per_token(m.config, m.dtype) for m in models if m.device == device)
    return Room(kv_room(memory.total, memory.used, share, scratch), per_token)
