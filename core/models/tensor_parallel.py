"""Tensor parallelism: the processes that torchrun starts share one model, each holding a shard of every layer.

transformers loads the shards and moves what lies between them, by the plan of the model's own class. All
processes must run the same forwards in the same order. Each keeps KV for its own heads only, unless the plan
gathers them.
"""

import copy
import os
from pathlib import Path
from typing import Any

import torch
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.distributed.tensor_parallel import get_kv_heads_per_rank

from core.models.architectures import model_class
from core.models.errors import InvalidModelFile, UnsupportedModel
from core.models.kv_cache import kv_shape
from core.models.model_config import EXPERTS


def processes() -> int:
    """How many processes torchrun has started; 1 outside of it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_plan(config: Any, degree: int) -> None:
    """UnsupportedModel unless the model can be shared between that many processes."""
    architecture = config.architectures[0]
    if not config.base_model_tp_plan:
        raise UnsupportedModel(f"{architecture} has no tensor parallel plan: leave tp_plan out")
    heads, kv_heads = config.num_attention_heads, kv_shape(config)[0]
    if _local_heads(config, heads, degree) is None or _local_heads(config, kv_heads, degree) is None:
        raise UnsupportedModel(
            f"{heads} attention heads and {kv_heads} key heads cannot be shared evenly between {degree} processes"
        )


def load_shard(folder: Path, config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """This process's shard, in eval mode; joins the process group first, for which it waits for the others.

    InvalidModelFile if weights are missing, left over or misshapen; UnsupportedModel if the processes' devices
    are not of the kind wanted.
    """
    cls = model_class(config.architectures[0])
    experts = {"experts_implementation": EXPERTS} if cls._can_set_experts_implementation() else {}
    model, report = cls.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        distributed_config=DistributedConfig(tp_plan="auto"),
        output_loading_info=True,
        **experts,
    )
    if wrong := [f"{kind}: {sorted(names)[:5]}" for kind, names in report.items() if names]:
        raise InvalidModelFile(f"{folder} does not fit its config: {'; '.join(wrong)}")
    if model.device.type != device.type:
        raise UnsupportedModel(f"these processes' devices are {model.device.type}, not {device.type}")
    return model.eval().requires_grad_(False)


def local_config(config: Any, degree: int) -> Any:
    """The config with the key heads that one process holds."""
    local = copy.deepcopy(config)
    heads, head_dim = kv_shape(config)
    local.num_key_value_heads, local.head_dim = _local_heads(config, heads, degree), head_dim
    return local


def _local_heads(config: Any, heads: int, degree: int) -> int | None:
    """Of so many heads, those one process computes; None if they cannot be shared evenly."""
    local: int | None = get_kv_heads_per_rank(config.base_model_tp_plan, heads, degree)
    return local
