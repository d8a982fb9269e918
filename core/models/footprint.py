"""How much memory a model's weights will take, from its config alone: the model is built without memory and counted."""

from typing import Any

import torch
from torch import nn

from core.models.model_config import empty_model
from core.models.packed_linear import WeightKind

_INT8_CHANNEL_BYTES = 12  # FBGEMM keeps a scale, a zero point and a column sum for every output channel
_FLOAT_BYTES = 4


def parameters(config: Any) -> int:
    """Number of weights of the model; a tied output layer counts once."""
    return sum(p.numel() for p in empty_model(config).parameters())


def weight_bytes(config: Any, weights: WeightKind, device_type: str) -> int:
    """Bytes the loader's result holds on a device of this type ("cpu", "cuda").

    Packed kinds on the CPU: linear layers packed, biases float32, embeddings half precision, all else float32;
    a tied output layer is packed beside its embedding. A CPU without packed kernels needs "float32"'s bytes.
    """
    model = empty_model(config)
    if device_type != "cpu" or weights not in ("fp16", "int8"):
        itemsize = 4 if weights == "float32" else 2
        return sum(p.numel() for p in model.parameters()) * itemsize
    return sum(_packed_bytes(module, weights) for module in model.modules())


def _packed_bytes(module: nn.Module, weights: WeightKind) -> int:
    own = sum(p.numel() for p in module.parameters(recurse=False))
    if isinstance(module, nn.Embedding):
        return own * torch.float16.itemsize
    if not isinstance(module, nn.Linear):
        return own * _FLOAT_BYTES
    bias = 0 if module.bias is None else module.out_features * _FLOAT_BYTES
    weight = module.in_features * module.out_features
    if weights == "fp16":
        return weight * torch.float16.itemsize + bias
    return weight + module.out_features * _INT8_CHANNEL_BYTES + bias
