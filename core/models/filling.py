"""A model built without memory gets its weights: module by module, as they are or packed, and never all in float32."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from core.models.fused_linear import fuse, siblings
from core.models.half_embedding import HalfEmbedding, halvable
from core.models.layer_fusing import fuse_layers
from core.models.packed_experts import PackedExperts, packable
from core.models.packed_linear import PACKED, PackedLinear, WeightKind
from core.models.row_norm import row_norm
from core.models.weight_names import ModelWeights


def fill(model: Any, source: ModelWeights, weights: WeightKind, dtype: torch.dtype, device: torch.device) -> None:
    """Replace every meta tensor. weights, dtype: as resolve_weights gives them for the device."""
    _make_buffers(model, device)
    if is_packed(weights, device.type):
        _fill_packed(model, source, PACKED[weights])
    else:
        _fill_plain(model, source, dtype, device)
    source.check_complete()
    if is_packed(weights, device.type):
        fuse_layers(model)


def _fill_packed(model: Any, source: ModelWeights, pack: type[PackedLinear]) -> None:
    groups = siblings(model)
    fused = {name for names in groups for name in names}

    def load_fused(names: tuple[str, ...]) -> None:
        layers = [_take(source, name, model.get_submodule(name)) for name in names]
        for name, stand_in in zip(names, fuse(layers, pack), strict=True):
            _replace(model, name, stand_in)

    def load(name: str) -> None:
        module = model.get_submodule(name)
        tensors = _take(source, name, module)
        stand_in = _packed(module, tensors, pack)
        if stand_in is None:
            _set(model, name, tensors, torch.float32, torch.device("cpu"))
            stand_in = row_norm(module)
        if stand_in is not None:
            _replace(model, name, stand_in)

    singles = [name for name, module in model.named_modules() if stored_tensors(module) and name not in fused]
    jobs = [(_size(model, [name]), partial(load, name)) for name in singles]
    jobs += [(_size(model, names), partial(load_fused, names)) for names in groups]
    # The largest first, so that no thread is left alone with the output layer, which takes as long as many others.
    _in_threads([job for _, job in sorted(jobs, key=lambda entry: entry[0], reverse=True)])


def _size(model: Any, names: Iterable[str]) -> int:
    """Numbers in the stored tensors of these modules."""
    return sum(value.numel() for name in names for value in stored_tensors(model.get_submodule(name)).values())


def _fill_plain(model: Any, source: ModelWeights, dtype: torch.dtype, device: torch.device) -> None:
    tied = dict(model.all_tied_weights_keys)

    def load(name: str) -> None:
        _set(model, name, _take(source, name, model.get_submodule(name)), dtype, device)

    names = [n for n, m in model.named_modules() if stored_tensors(m) and f"{n}.weight" not in tied]
    _in_threads([partial(load, name) for name in names])
    for name, original in tied.items():
        model.get_submodule(name.rpartition(".")[0]).weight = model.get_parameter(original)


def _in_threads(jobs: Sequence[Callable[[], None]]) -> None:
    """A handful of threads, one layer each, since a packing is serial; each holds its layer in float32."""
    with ThreadPoolExecutor(max_workers=min(4, torch.get_num_threads())) as threads:
        list(threads.map(lambda job: job(), jobs))


def _take(source: ModelWeights, name: str, module: nn.Module) -> dict[str, Tensor]:
    return {own: source.take(f"{name}.{own}", value.shape) for own, value in stored_tensors(module).items()}


def _set(model: Any, name: str, tensors: dict[str, Tensor], dtype: torch.dtype, device: torch.device) -> None:
    """Give a module of the model its tensors, in the dtype it keeps them in."""
    module = model.get_submodule(name)
    for own, tensor in tensors.items():
        value = tensor.to(device, stored_dtype(model, f"{name}.{own}", dtype), copy=True)
        is_buffer = own in module._buffers
        setattr(module, own, value if is_buffer else nn.Parameter(value, requires_grad=False))


def _replace(model: Any, name: str, stand_in: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, stand_in)


def is_packed(weights: WeightKind, device_type: str) -> bool:
    """Whether these weights are held in the packed layouts of the CPU kernels."""
    return device_type == "cpu" and weights in PACKED


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


def _packed(module: nn.Module, tensors: dict[str, Tensor], pack: type[PackedLinear]) -> nn.Module | None:
    """What stands in for the module with packed weights; None if it keeps plain ones."""
    if type(module) is nn.Linear:
        return pack(tensors["weight"], tensors.get("bias"))
    if isinstance(module, nn.Embedding) and halvable(module):
        return HalfEmbedding(tensors["weight"], module)
    return PackedExperts(module, tensors, pack) if packable(module) else None
