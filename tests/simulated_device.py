"""A second device on a machine that has none: arithmetic by the CPU, manners of an accelerator.

Inside `with SimulatedDevice() as device:` tensors made or moved to `DEVICE` compute on the CPU, but an operation
that mixes them with CPU tensors fails, as on CUDA, and everything for which a host would have to wait until an
accelerator's queue is empty is noted in `device.waits`. What it cannot show: the kernels' own rounding, streams,
pinned memory, and what `torch.tensor(values, device=...)` would cost (it fails here: use core.device_copy).
"""

import sys
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._C import DispatchKey
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from core import device_copy

# What the tensors say of themselves: a device type that every build of torch knows, and that is not the CPU.
DEVICE = torch.device("meta")

_WAITING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::bincount",
    "aten::equal",
    "aten::_unique2",
    "aten::repeat_interleave.Tensor",
}
_COPIES = {"aten::_to_copy", "aten::copy_"}


class Remote(Tensor):
    """A tensor on DEVICE; `local` is what it holds."""

    local: Tensor

    @staticmethod
    def __new__(cls, local: Tensor) -> "Remote":
        remote = Tensor._make_wrapper_subclass(
            cls,
            local.size(),
            strides=local.stride(),
            storage_offset=local.storage_offset(),
            dtype=local.dtype,
            device=DEVICE,
        )
        remote.local = local
        return remote

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Remote({self.local!r})"

    def tolist(self) -> Any:
        SimulatedDevice.entered[-1].waits.append("tolist")
        return self.local.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("a tensor of the simulated device is used outside its mode")


class SimulatedDevice(TorchDispatchMode):
    """waits: names of the operations that made the host wait, in order; among them copies from memory that is not
    pinned, which on CUDA may. copies: of all copies to and from the device, but for single numbers. calls: how many
    operations the device was given. largest: elements of the largest tensor it made."""

    entered: ClassVar[list["SimulatedDevice"]] = []

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.copies: list[str] = []
        self.calls = 0
        self.largest = 0

    def __enter__(self) -> "SimulatedDevice":
        SimulatedDevice.entered.append(self)
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        SimulatedDevice.entered.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
            with self:  # in inference mode such operations arrive whole
                return func.decompose(*args, **kwargs)
        name = func.name()
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        remote = [tensor for tensor in tensors if isinstance(tensor, Remote)]
        local = [tensor for tensor in tensors if not isinstance(tensor, Remote)]
        asked = kwargs.get("device")
        here = bool(remote) if asked is None else torch.device(asked).type == DEVICE.type
        if name in _COPIES:
            if bool(remote) != here or (remote and local and name == "aten::copy_"):
                self._copy(name, args, kwargs)
        elif remote and any(tensor.dim() > 0 for tensor in local):
            raise RuntimeError(f"{name}: expected all tensors to be on the same device")
        elif remote and (name in _WAITING or _indexes_by_mask(name, args)):
            self.waits.append(name)
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        # Wrappers made in inference mode could not stand where a normal tensor is expected.
        with torch.inference_mode(False), torch.no_grad():
            result = func(*tree_map(_local, args), **tree_map(_local, kwargs))
            if not here:
                return result
            self.calls += 1
            made = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            self.largest = max(self.largest, *made, 0)
            return tree_map(lambda value: _remote(value, remote), result)

    def _copy(self, name: str, args: Any, kwargs: Any) -> None:
        non_blocking = kwargs.get("non_blocking", args[2] if name == "aten::copy_" and len(args) > 2 else False)
        source = args[1] if name == "aten::copy_" else args[0]
        if source.dim() == 0 and not isinstance(source, Remote):
            return  # a number, which travels with the kernel
        self.copies.append(name)
        if not non_blocking or isinstance(source, Remote) or not _pinned():
            self.waits.append(name)


def _pinned() -> bool:
    """Whether the copy is one of core.device_copy's, which on CUDA come from pinned memory; there is none here."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename != device_copy.__file__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def _indexes_by_mask(name: str, args: Any) -> bool:
    masks = (torch.bool, torch.uint8)
    return (
        name.startswith("aten::index")
        and len(args) > 1
        and isinstance(args[1], list | tuple)
        and any(isinstance(index, Tensor) and index.dtype in masks for index in args[1])
    )


def _local(value: Any) -> Any:
    return value.local if isinstance(value, Remote) else value


def _remote(value: Any, given: list[Remote]) -> Any:
    """An operation's result as a tensor of the device; the very argument where it worked in place."""
    if not isinstance(value, Tensor):
        return value
    same = [tensor for tensor in given if tensor.local is value]
    return same[0] if same else Remote(value)


def moved(model: nn.Module) -> nn.Module:
    """The model with every weight and buffer on DEVICE, in place; to be called inside the mode."""
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = Remote(tensor.data)  # type: ignore[assignment]
        for name, value in vars(module).items():  # plain attributes, such as a rotary embedding's original table
            if isinstance(value, Tensor):
                setattr(module, name, Remote(value.data))
    return model
