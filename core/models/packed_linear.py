"""Linear layers and embeddings with packed weights, for decoding on CPUs.

At one to sixteen rows a layer costs the time to read its weights, so half the bytes are twice the speed.
Fp16Linear keeps half-precision weights and multiplies in float32. Int8Linear keeps 8-bit weights, one
scale per output channel, and quantises every activation row by its own scale to 7 bits: rows never see
each other (a scale over the whole batch would let neighbours change an answer), and two products of a
7-bit unsigned and an 8-bit signed number fit the 16-bit lanes of AVX2's multiply-add
(2 * 127 * 127 = 32258 < 32768), which would saturate with 8 bits.
"""

import functools
import threading
import warnings
from inspect import signature
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

WeightKind = Literal["float32", "bfloat16", "fp16", "int8"]

_HALF_RANGE = 63.0  # a row's largest value becomes +-63 around the zero point
_ZERO_POINT = 64


class Fp16Linear(nn.Module):
    """y = x W^T + b; W float16, x and y float32 [..., in] -> [..., out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: [out, in], bias: [out]; any float dtype. Finite values beyond half precision saturate."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        with _packing:
            self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), _float(bias))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return y


class Int8Linear(nn.Module):
    """y = x W^T + b; W int8 per output channel, x float32 [..., in] quantised per row to 7 bits."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: [out, in], bias: [out]; any float dtype."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("bias", _float(bias), persistent=False)
        weight = weight.float()
        low, high = weight.aminmax(dim=1)  # a copy of all magnitudes would be the largest thing that loading holds
        scales = torch.maximum(high, low.neg()).clamp_min_(torch.finfo(torch.float32).tiny).div_(127).double()
        with warnings.catch_warnings(), _packing:
            # The quantised tensor lives only until it is packed; the packed kernel is what we are after.
            warnings.filterwarnings("ignore", message=".*quantize_per_channel.*")
            quantised = torch.quantize_per_channel(
                weight, scales, torch.zeros_like(scales, dtype=torch.long), 0, torch.qint8
            )
            self._packed = torch.ops.quantized.linear_prepack(quantised, None)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.reshape(-1, self.in_features)
        scale = x.abs().amax(dim=1, keepdim=True).div_(_HALF_RANGE).clamp_min_(torch.finfo(torch.float32).tiny)
        y: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            x / scale, 1.0, _ZERO_POINT, self._packed
        )
        y.mul_(scale)
        if self.bias is not None:
            y.add_(self.bias)
        return y.view(*shape[:-1], self.out_features)


class HalfEmbedding(nn.Module):
    """A float16 table whose rows are cast to float32 when looked up; ids [...] -> [..., dim].

    lookup: the embedding it stands in for; it loses its own table. If that does more than look up (Gemma scales
    its rows), its own forward runs over a table of just the rows asked for.
    """

    weight: Tensor

    def __init__(self, weight: Tensor, lookup: nn.Embedding | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight.to(torch.float16, copy=True), persistent=False)
        self._lookup = None if lookup is None or type(lookup) is nn.Embedding else lookup
        if self._lookup is not None:
            self._lookup.weight = nn.Parameter(torch.empty(0, weight.shape[1]), requires_grad=False)
            self._lookup.padding_idx = None  # means something to gradients alone, but is checked against the table

    def forward(self, ids: Tensor) -> Tensor:
        rows = functional.embedding(ids, self.weight).float()
        if self._lookup is None:
            return rows
        table = {"weight": rows.view(-1, rows.shape[-1])}
        places = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
        scaled: Tensor = torch.func.functional_call(self._lookup, table, (places,))
        return scaled


def halvable(module: nn.Module) -> bool:
    """Whether HalfEmbedding can stand in for it: an embedding looked up by ids alone (OPT's positions are not)."""
    return isinstance(module, nn.Embedding) and len(signature(type(module).forward).parameters) == 2


@functools.cache
def packing_available() -> bool:
    """Whether this machine's torch has the packed kernels (FBGEMM: x86 with AVX2)."""
    try:
        probe = torch.eye(4)
        for layer in (Fp16Linear(probe, None), Int8Linear(probe, None)):
            layer(probe)
    except (RuntimeError, AttributeError):
        return False
    return True


def _float(bias: Tensor | None) -> Tensor | None:
    """A copy: what is kept must not be a view into a file."""
    return None if bias is None else bias.to(torch.float32, copy=True)


class _FbgemmEngine:
    """Pack for FBGEMM whatever the process's quantised engine is: only its packing serves both kernels.

    The engine is a setting of the whole process and layers are packed in threads, so the first to enter
    sets it and the last to leave restores it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = ""

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = torch.backends.quantized.engine
                torch.backends.quantized.engine = "fbgemm"
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch.backends.quantized.engine = self._before


_packing = _FbgemmEngine()
