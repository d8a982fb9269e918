"""RowNorm: root mean square normalisation in one pass, for the many modules that models write it down as."""

import torch
from torch import Tensor, nn

from core.models.row_kernels import row_kernels

_NEAR = 1e-5  # relative and absolute: float32's rounding in another order


class RowNorm(nn.Module):
    """x / sqrt(mean of x squared + eps) * weight over the last dimension; float32 [..., n] -> the same shape."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        """weight: [n]; copied."""
        super().__init__()
        self.weight = nn.Parameter(weight.to(torch.float32, copy=True), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """TypeError for another dtype, ValueError for another width: the kernel takes addresses and would not know."""
        weight, n = self.weight, x.shape[-1]
        if not x.dtype == weight.dtype == torch.float32:
            raise TypeError(f"RowNorm takes float32, not {x.dtype} with a weight of {weight.dtype}")
        if n != weight.numel():
            raise ValueError(f"rows of {n} numbers, a weight of {weight.numel()}")
        x = x.contiguous()
        out = torch.empty_like(x)
        row_kernels().rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), self.eps, rows=x.numel() // n, n=n)
        return out


@torch.inference_mode()
def row_norm(module: nn.Module) -> RowNorm | None:
    """What computes the same as this module, which holds its weight already; None if it is no such norm.

    Judged by what it does to random rows, since a few models call by the same name something else (Gemma's weight
    is what is added to 1).
    """
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if "RMSNorm" not in type(module).__name__ or not isinstance(eps, float) or not isinstance(weight, nn.Parameter):
        return None
    if weight.dim() != 1 or len(list(module.parameters())) != 1 or weight.dtype != torch.float32:
        return None
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, weight.numel(), generator=generator) * torch.tensor([[4.0], [eps**0.5]])
    expected = module(rows)
    for candidate in (RowNorm(weight, eps), RowNorm(1 + weight, eps)):
        if expected.shape == rows.shape and torch.allclose(candidate(rows), expected, rtol=_NEAR, atol=_NEAR):
            return candidate
    return None
