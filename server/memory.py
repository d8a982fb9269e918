"""What models and their KV take of a device's memory: the sums that start-up and `config check` both do."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from core.models.footprint import parameters, weight_bytes
from core.models.kv_cache import KVCache
from core.models.loader import resolve_weights
from core.models.scratch import HeaviestRound
from server.device_memory import DeviceMemory
from server.heaviest import estimated_graphs, estimated_scratch
from server.placement import Placement
from server.weights.disk import human

CPU_TOKENS = 32768  # of KV where kv_cache.tokens = auto and memory is taken only as it fills
CPU_SHARE = 0.8  # of the CPU's memory for models and KV where a draft's KV there follows what fits on a GPU
# The server itself. On a CPU: Python, libraries and vocabulary tables, measured with 150,000 tokens. On a GPU: what
# CUDA takes for its code and its own use.
SERVER_BYTES = {"cpu": 1_000_000_000, "cuda": 500_000_000}


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """One model on its device, in bytes. kv_per_token: of one position in all layers. scratch: of the heaviest round,
    about. graphs: of recorded forwards, about."""

    device: str
    parameters: int
    weights: int
    kv_per_token: int
    scratch: int = 0
    graphs: int = 0

    @property
    def fixed(self) -> int:
        """All but the KV."""
        return self.weights + self.scratch + self.graphs + SERVER_BYTES[self.device.partition(":")[0]]


@dataclass(frozen=True, slots=True)
class Room:
    """What a device has left for KV, in bytes, and what a position takes of it."""

    bytes: int
    kv_per_token: int


def model_memory(config: Any, placed: Placement, heaviest: HeaviestRound | None = None) -> ModelMemory:
    """From transformers' config object; the model is built without memory and counted, in a second or less.
    heaviest: the round that scratch is estimated of."""
    weights, dtype = resolve_weights(placed.weights, torch.device(placed.device_type))
    return ModelMemory(
        device=placed.device,
        parameters=parameters(config),
        weights=weight_bytes(config, weights, placed.device_type),
        kv_per_token=KVCache.bytes_per_token(config, dtype),
        scratch=0 if heaviest is None else estimated_scratch(config, dtype, placed.device_type, heaviest),
        graphs=estimated_graphs(config) if placed.graphs else 0,
    )


def kv_room(total: int, used: int, share: float, scratch: int = 0) -> int:
    """Bytes for KV on a device of `total` bytes of which `share` may be taken, `used` are, and rounds need `scratch`:
    24 GB, 0.9, 16 GB and 1 GB leave 4.6 GB."""
    return max(0, int(total * share) - used - scratch)


def tokens_that_fit(rooms: Iterable[Room], block_size: int) -> int:
    """Positions in whole blocks for which every device has room: one block id means the same positions everywhere."""
    return block_size * min(room.bytes // (room.kv_per_token * block_size) for room in rooms)


def by_device(models: Iterable[ModelMemory]) -> Mapping[str, ModelMemory]:
    """The models of one device added up; of scratch the larger, for they run in turn."""
    sums: dict[str, ModelMemory] = {}
    for one in models:
        had = sums.get(one.device, ModelMemory(one.device, 0, 0, 0))
        sums[one.device] = ModelMemory(
            one.device,
            had.parameters + one.parameters,
            had.weights + one.weights,
            had.kv_per_token + one.kv_per_token,
            max(had.scratch, one.scratch),
            had.graphs + one.graphs,
        )
    return sums


def too_large(models: Iterable[ModelMemory], memory: Mapping[str, DeviceMemory]) -> Iterator[str]:
    """Devices whose free memory does not even hold the weights meant for them, each in a sentence."""
    for device, all_of_it in by_device(models).items():
        has = memory.get(device)
        if has is None or all_of_it.weights <= has.free:
            continue
        yield (
            f"{human(has.free)} of {device}'s {human(has.total)} are free and the weights alone take "
            f"{human(all_of_it.weights)}: see what else runs there, choose a larger device, smaller models, or another "
            "device for the draft (one model over several GPUs is for a later release)"
        )


def default_tokens(tokens: int | None, max_context: int | None) -> int:
    """kv_cache.tokens where no device's memory has to be divided up; `auto` has room for the longest request."""
    return tokens or max(CPU_TOKENS, max_context or 0)
