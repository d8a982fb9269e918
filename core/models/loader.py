"""load_model: a local folder (config.json, safetensors, tokenizer) becomes a model ready to run.

The model is built on torch's meta device, without memory, and filled layer by layer from memory-mapped
files; a weight exists in float32 only while its layer is packed.
"""

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from core.heap import trim_heap
from core.models.architectures import SUPPORTED
from core.models.checkpoint import Checkpoint, fingerprint
from core.models.errors import InvalidModelFile, UnsupportedModel
from core.models.filling import fill, is_packed
from core.models.gguf_conversion import convert_gguf
from core.models.model_config import empty_model, max_context, read_config
from core.models.packed_linear import WeightKind, packing_available
from core.models.special_tokens import end_and_control_ids, read_json
from core.models.tensor_parallel import check_plan, load_shard, local_config, processes
from core.models.weight_names import ModelWeights

__all__ = [
    "InvalidModelFile",
    "LoadedModel",
    "UnsupportedModel",
    "convert_gguf",
    "fingerprint",
    "load_model",
    "resolve_weights",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model and what the engine must know about it.

    model: transformers' causal LM in eval mode, of several processes' one this one's shard. config: with the
    key heads of this process. dtype: of activations and KV. weights: what the linear
    layers really hold. fingerprint: hex, equal for equal config, tokenizer and weights. max_context:
    positions. vocab_size: columns of the logits. eos_token_ids: any of them ends an answer.
    control_token_ids: special tokens, end tokens included.
    """

    model: Any
    config: Any
    name: str
    fingerprint: str
    max_context: int
    eos_token_ids: frozenset[int]
    control_token_ids: frozenset[int]
    vocab_size: int
    weights: WeightKind
    folder: Path | None
    dtype: torch.dtype
    device: torch.device


def load_model(
    folder: Path,
    weights: WeightKind,
    device: str | torch.device = "cpu",
    name: str | None = None,
    tp_plan: Literal["auto"] | None = None,
) -> LoadedModel:
    """Load a model for inference.

    weights: what linear layers hold; "fp16" and the int8 kinds are packed for CPUs (float32 activations).
    On other devices "fp16" is plain half precision and the others are a ValueError. Where the CPU lacks the packed
    kernels all fall back to float32, with a warning. tp_plan: "auto" shares the model between torchrun's processes,
    and asks for a model that can be shared even where there is but one. UnsupportedModel for what
    architectures.py or FIXED_ROPE lacks, or what cannot be shared; InvalidModelFile if files are missing,
    damaged or do not fit the config.
    """
    config, where = read_config(folder), torch.device(device)
    weights, dtype = resolve_weights(weights, where)
    if dtype == torch.float16 and SUPPORTED[config.architectures[0]].wide:
        logger.warning("%s is known to overflow in fp16, where answers turn to nonsense: use bfloat16", name or folder)
    degree = 1
    if tp_plan is not None:
        degree = processes()
        check_plan(config, degree)
    if degree > 1:
        if is_packed(weights, where.type):
            raise UnsupportedModel(f"packed {weights} weights cannot be shared between processes; use bfloat16")
        model = load_shard(folder, config, dtype, where)
        config, where = local_config(config, degree), model.device
    else:
        model = empty_model(config).eval()
        fill(model, ModelWeights(model, Checkpoint(folder)), weights, dtype, where)
        trim_heap()
    end_ids, control_ids = end_and_control_ids(folder)
    return LoadedModel(
        model=model,
        config=config,
        name=name or folder.name,
        fingerprint=fingerprint(folder),
        max_context=max_context(config, _tokenizer_limit(folder)),
        eos_token_ids=end_ids,
        control_token_ids=control_ids,
        vocab_size=int(config.vocab_size),
        weights=weights,
        folder=folder,
        dtype=dtype,
        device=where,
    )


def _tokenizer_limit(folder: Path) -> int | None:
    limit = read_json(folder / "tokenizer_config.json").get("model_max_length")
    return int(limit) if isinstance(limit, int | float) and 0 < limit < math.inf else None


def resolve_weights(weights: WeightKind, device: torch.device) -> tuple[WeightKind, torch.dtype]:
    """What the linear layers will hold, and the dtype of activations and KV. ValueError for the int8 kinds
    elsewhere than on a CPU."""
    if weights == "bfloat16":
        return weights, torch.bfloat16
    if device.type != "cpu":
        if weights in ("int8_split", "int8_mixed", "int8"):
            raise ValueError(f"{weights} weights need the CPU; use bfloat16 or fp16 on other devices")
        return weights, torch.float16 if weights == "fp16" else torch.float32
    if weights != "float32" and not packing_available():
        logger.warning("this CPU lacks the packed %s kernels; using float32 weights", weights)
        return "float32", torch.float32
    return weights, torch.float32
