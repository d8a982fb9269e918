"""How much memory a model's weights will take, from its config alone: the model is built without memory and counted."""

from math import prod
from typing import Any

import torch
from torch import nn

from core.models.filling import is_packed, stored_dtype, stored_tensors
from core.models.half_embedding import halvable
from core.models.model_config import empty_model
from core.models.packed_experts import packable
from core.models.packed_linear import WeightKind

_INT8_CHANNEL_BYTES = 12  # a scale and a column sum for every output channel, and FBGEMM keeps a zero point
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "fp16": torch.float16}


def parameters(config: Any) -> int:
    """Number of weights of the model; a tied output layer counts once."""
    return sum(p.numel() for p in empty_model(config).parameters())


def weight_bytes(config: Any, weights: WeightKind, device_type: str) -> int:
    """Bytes the loader's result holds on a device of this type ("cpu", "cuda").

    weights: what the linear layers hold in the end, as resolve_weights says (a CPU without the packed kernels
    falls back to float32). Packed kinds on the CPU: linear layers and experts packed, biases float32, embeddings
    half precision, all else float32; a tied output layer is packed beside its embedding.
    """
    model = empty_model(config)
    if is_packed(weights, device_type):
        return sum(_packed_bytes(module, weights) for module in model.modules())
    tied = model.all_tied_weights_keys
    return sum(
        tensor.numel() * stored_dtype(model, f"{name}.{own}", _DTYPES[weights]).itemsize
        for name, module in model.named_modules()
        for own, tensor in stored_tensors(module).items()
        if f"{name}.{own}" not in tied
    )


def _packed_bytes(module: nn.Module, weights: WeightKind) -> int:
    """Of the module's own tensors."""
    tensors = stored_tensors(module)
    if halvable(module):
        return tensors["weight"].numel() * torch.float16.itemsize
    total = 0
    for tensor in tensors.values():
        matrix = (type(module) is nn.Linear and tensor.dim() == 2) or packable(module)
        channels = prod(tensor.shape[:-1])
        if not matrix:
            total += tensor.numel() * torch.float32.itemsize
        elif weights == "fp16":
            total += tensor.numel() * torch.float16.itemsize
        else:
            total += tensor.numel() + channels * _INT8_CHANNEL_BYTES
    return total
