"""A model built without memory gets its weights: module by module, as they are or packed, and never all in float32."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from core.models.packed_experts import PackedExperts, packable
from core.models.packed_linear import Fp16Linear, HalfEmbedding, Int8Linear, WeightKind, halvable
from core.models.weight_names import ModelWeights


def fill(model: Any, source: ModelWeights, weights: WeightKind, dtype: torch.dtype, device: torch.device) -> None:
    """Replace every meta tensor. weights, dtype: as resolve_weights gives them for the device."""
    _make_buffers(model, device)
    packed = is_packed(weights, device.type)
    tied = {} if packed else dict(model.all_tied_weights_keys)

    def load(name: str, module: nn.Module) -> None:
        tensors = {p: source.take(f"{name}.{p}", value.shape) for p, value in stored_tensors(module).items()}
        stand_in = _packed(module, tensors, weights) if packed else None
        if stand_in is not None:
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, stand_in)
            return
        for own, tensor in tensors.items():
            value = tensor.to(device, stored_dtype(model, f"{name}.{own}", dtype), copy=True)
            is_buffer = own in module._buffers
            setattr(module, own, value if is_buffer else nn.Parameter(value, requires_grad=False))

    jobs = [(n, m) for n, m in model.named_modules() if stored_tensors(m) and f"{n}.weight" not in tied]
    # A handful of threads, one layer each, since a packing is serial; each holds its layer in float32.
    with ThreadPoolExecutor(max_workers=min(4, torch.get_num_threads())) as threads:
        list(threads.map(load, *zip(*jobs, strict=True)))
    for name, original in tied.items():
        model.get_submodule(name.rpartition(".")[0]).weight = model.get_parameter(original)
    source.check_complete()


def is_packed(weights: WeightKind, device_type: str) -> bool:
    """Whether these weights are held in the packed layouts of the CPU kernels."""
    return device_type == "cpu" and weights in ("fp16", "int8")


def stored_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The module's own tensors that a checkpoint holds, by name."""
    buffers = {n: b for n, b in module.named_buffers(recurse=False) if n not in module._non_persistent_buffers_set}
    return {**dict(module.named_parameters(recurse=False)), **buffers}


def stored_dtype(model: Any, name: str, dtype: torch.dtype) -> torch.dtype:
    """What a tensor is kept in where the model is kept in `dtype`: a few (routers' biases) never leave float32."""
    kept = set(model._keep_in_fp32_modules_strict or ())
    if dtype == torch.float16:
        kept |= set(model._keep_in_fp32_modules or ())
    return torch.float32 if any(f".{part}." in f".{name}." for part in kept) else dtype


def _make_buffers(model: Any, device: torch.device) -> None:
    """Buffers a constructor computes (rotary frequencies, embedding scales) are no weights: on meta their values
    are lost, so transformers computes them anew. Its weight initialisation does so, and the weights beside them
    are still on meta then, where initialising costs nothing."""
    for module in list(model.modules()):
        computed = [name for name in module._non_persistent_buffers_set if module._buffers.get(name) is not None]
        for name in computed:
            module._buffers[name] = torch.empty_like(module._buffers[name], device=device)
        if computed:
            model._init_weights(module)


def _packed(module: nn.Module, tensors: dict[str, Tensor], weights: WeightKind) -> nn.Module | None:
    """What stands in for the module with packed weights; None if it keeps plain ones."""
    pack = Fp16Linear if weights == "fp16" else Int8Linear
    if type(module) is nn.Linear:
        return pack(tensors["weight"], tensors.get("bias"))
    if isinstance(module, nn.Embedding) and halvable(module):
        return HalfEmbedding(tensors["weight"], module)
    return PackedExperts(module, tensors, pack) if packable(module) else None
