"""A recorder for machines without CUDA: keeps the operations a function makes and replays them on the same tensors.

As a CUDA graph does, and unlike calling the function again: nothing of Python runs in a replay, so that a size, an
index or a branch that depends on the batch is frozen and found out, and every tensor keeps its address.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from core.models.graphs import Replay

_ASKING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2"}


class TapeRecorder:
    """records: how many recordings it has made. replays: how often they were replayed."""

    def __init__(self) -> None:
        self.records = 0
        self.replays = 0

    def record(self, run: Callable[[], None]) -> Replay:
        self.records += 1
        tape = _Tape()
        with tape:
            run()

        def replay() -> None:
            self.replays += 1
            tape.replay()

        return replay


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in _ASKING:
            raise RuntimeError(f"{func.name()} waits for the device, which a recording cannot")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        made = [
            (index, leaf)
            for index, leaf in enumerate(tree_leaves(result))
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in given
        ]
        if made or func._schema.is_mutable:  # what is left are views, whose memory is another's
            self._calls.append((func, args, kwargs, made))
        return result

    @torch.inference_mode()
    def replay(self) -> None:
        for func, args, kwargs, made in self._calls:
            again = tree_leaves(func(*args, **kwargs))
            for index, tensor in made:
                tensor.copy_(again[index])
