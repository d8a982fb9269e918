"""What models and their KV take of a device's memory: the sums that start-up and `config check` both do."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from core.models.footprint import parameters, weight_bytes
from core.models.kv_cache import KVCache
from core.models.loader import resolve_weights
from server.placement import Placement
from server.weights.disk import human

CPU_TOKENS = 32768  # of KV where kv_cache.tokens = auto and memory is taken only as it fills


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """One model on its device. weights: bytes. kv_per_token: bytes one position takes in all layers."""

    device: str
    parameters: int
    weights: int
    kv_per_token: int


@dataclass(frozen=True, slots=True)
class Room:
    """What a device has left for KV, in bytes, and what a position takes of it."""

    bytes: int
    kv_per_token: int


def model_memory(config: Any, placed: Placement) -> ModelMemory:
    """From transformers' config object; the model is built without memory and counted, in a second or less."""
    weights, dtype = resolve_weights(placed.weights, torch.device(placed.device_type))
    return ModelMemory(
        device=placed.device,
        parameters=parameters(config),
        weights=weight_bytes(config, weights, placed.device_type),
        kv_per_token=KVCache.bytes_per_token(config, dtype),
    )


def kv_room(total: int, used: int, utilization: float) -> int:
    """Bytes for KV on a device of `total` bytes where `used` are taken: 24 GB, 17 GB and 0.9 leave 4.6 GB."""
    return max(0, int(total * utilization) - used)


def tokens_that_fit(rooms: Iterable[Room], block_size: int) -> int:
    """Positions in whole blocks for which every device has room: one block id means the same positions everywhere."""
    return block_size * min(room.bytes // (room.kv_per_token * block_size) for room in rooms)


def by_device(models: Iterable[ModelMemory]) -> Mapping[str, ModelMemory]:
    """The models of one device added up."""
    sums: dict[str, ModelMemory] = {}
    for one in models:
        had = sums.get(one.device, ModelMemory(one.device, 0, 0, 0))
        sums[one.device] = ModelMemory(
            one.device,
            had.parameters + one.parameters,
            had.weights + one.weights,
            had.kv_per_token + one.kv_per_token,
        )
    return sums


def too_large(models: Iterable[ModelMemory], sizes: Mapping[str, int]) -> Iterator[str]:
    """Devices whose bytes in `sizes` do not even hold the weights meant for them, each in a sentence."""
    for device, all_of_it in by_device(models).items():
        size = sizes.get(device)
        if size is not None and all_of_it.weights > size:
            yield (
                f"{device} has {human(size)} and the weights alone take {human(all_of_it.weights)}: choose a larger "
                "device, smaller models, or another device for the draft (one model over several GPUs is for a later "
                "release)"
            )


def default_tokens(tokens: int | None, max_context: int | None) -> int:
    """kv_cache.tokens where no device's memory has to be divided up; `auto` has room for the longest request."""
    return tokens or max(CPU_TOKENS, max_context or 0)
