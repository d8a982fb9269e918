"""Where each model of a configuration runs on this machine, and what stands in the way of that."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from core.models.flash_version import FLASH_VERSIONS, flash_version
from server.model_settings import CPU_ONLY, Attention, ModelSettings, TargetSettings, Weights
from server.settings import Settings


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides about placement. cuda_devices: how many torch sees. processes: torchrun's WORLD_SIZE.
    has_flash_attn: of a release that we know the calls of."""

    cuda_devices: int
    processes: int
    has_flash_attn: bool

    @classmethod
    def here(cls, settings: Settings) -> "Machine":
        """Counts CUDA devices, without starting CUDA, only if a model may run on one: torch takes a while to import."""
        count = 0
        if any(model.device != "cpu" for _, model in settings.models.items()):
            import torch

            count = torch.cuda.device_count()
        world_size = os.environ.get("WORLD_SIZE", "")
        processes = int(world_size) if world_size.isdecimal() else 1
        return cls(count, processes, has_flash_attn=flash_version() is not None)


@dataclass(frozen=True, slots=True)
class Placement:
    """A model's settings with every default decided. device: "cpu" or "cuda:N". graphs: whether its forwards are
    recorded in CUDA graphs."""

    device: str
    weights: Weights
    attention: Attention
    graphs: bool
    tp_plan: Literal["auto"] | None

    @property
    def device_type(self) -> str:
        return self.device.partition(":")[0]

    @property
    def cuda_index(self) -> int | None:
        return int(self.device.partition(":")[2]) if self.device_type == "cuda" else None


def place(model: ModelSettings, machine: Machine) -> Placement:
    """Decide what the settings leave open. The device may be one that this machine lacks."""
    device = model.device
    if device == "auto":
        device = "cuda:0" if machine.cuda_devices else "cpu"
    elif device == "cuda":
        device = "cuda:0"
    default: Weights = "bfloat16"
    if device == "cpu":
        default = "fp16" if isinstance(model, TargetSettings) else "int8"
    graphs = device != "cpu" and model.cuda_graphs == "auto"
    return Placement(device, model.weights or default, model.attention, graphs, model.tp_plan)


def obstacles(settings: Settings, machine: Machine) -> Iterator[str]:
    """Why this machine cannot run the models as configured; nothing if it can. Memory aside."""
    for key, model in settings.models.items():
        placed = place(model, machine)
        index = placed.cuda_index
        if index is not None and index >= machine.cuda_devices:
            yield f"{key}.device = {model.device}: torch sees {_cuda_devices(machine.cuda_devices)} here"
            continue
        if index is not None and placed.weights in CPU_ONLY:
            yield (
                f"{key}.weights = {placed.weights} need the CPU, and device = auto is {placed.device} here: "
                "set device = cpu"
            )
        if placed.attention == "flash_attn" and index is None:
            yield f"{key}.attention = flash_attn needs a CUDA device, and device = auto is the CPU here"
        elif placed.attention == "flash_attn" and not machine.has_flash_attn:
            yield (
                f"{key}.attention = flash_attn: flash-attn {FLASH_VERSIONS} is not installed; attention = auto does "
                "without it"
            )
        if machine.processes > 1 and model.tp_plan is not None:
            yield (
                f"{key}.tp_plan = {model.tp_plan} over WORLD_SIZE = {machine.processes} processes is for a later "
                "release: start one process, on a device that holds the whole model"
            )


def _cuda_devices(count: int) -> str:
    if count == 0:
        return "no CUDA device"
    return "only cuda:0" if count == 1 else f"only cuda:0 to cuda:{count - 1}"
