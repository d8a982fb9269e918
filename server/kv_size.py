"""How many positions the KV cache holds: what the configuration says, or what fits beside the loaded weights."""

import gc
import logging
from collections.abc import Sequence

import torch

from core.models.kv_cache import KVCache
from core.models.loader import LoadedModel
from server.assembly_error import AssemblyError
from server.memory import Room, default_tokens, kv_room, tokens_that_fit
from server.settings import Settings
from server.weights.disk import human

log = logging.getLogger(__name__)

_LEAST = 256  # as in KvCacheSettings


def kv_tokens(settings: Settings, models: Sequence[LoadedModel], block_size: int) -> int:
    """Positions for all sequences together. AssemblyError if what fits would not hold one request of max_context."""
    devices = {model.device for model in models if model.device.type == "cuda"}
    if settings.kv_cache.tokens is not None or not devices:
        return default_tokens(settings.kv_cache.tokens, settings.max_context)
    gc.collect()
    torch.cuda.empty_cache()  # what loading took and gave back would count as used
    rooms = [_room(device, models, settings.kv_cache.gpu_memory_utilization) for device in devices]
    tokens, least = tokens_that_fit(rooms, block_size), settings.max_context or _LEAST
    if tokens < least:
        free = human(min(room.bytes for room in rooms))
        raise AssemblyError(
            f"beside the weights {free} are left for KV, enough for {tokens} tokens of the {least} that one request "
            "may take: lower max_context, raise kv_cache.gpu_memory_utilization, or choose a larger device"
        )
    log.info("KV cache: %d tokens fit", tokens)
    return tokens


def _room(device: torch.device, models: Sequence[LoadedModel], utilization: float) -> Room:
    free, total = torch.cuda.mem_get_info(device)
    per_token = sum(KVCache.bytes_per_token(m.config, m.dtype) for m in models if m.device == device)
    return Room(kv_room(total, total - free, utilization), per_token)
