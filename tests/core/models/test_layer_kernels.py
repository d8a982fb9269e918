"""What stands between a layer's products: against the same in torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from core.models.layer_kernels import layer_kernels
from core.models.row_norm import RowNorm


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(1, 9), n=st.sampled_from([8, 24, 96, 896]), seed=st.integers(0, 99))
def test_residual_and_norm_in_one(rows: int, n: int, seed: int) -> None:
    torch.manual_seed(seed)
    x, more, weight = torch.randn(rows, n) * 3, torch.randn(rows, n), torch.randn(n)
    total, out = torch.empty(rows, n), torch.empty(rows, n)
    places = [tensor.data_ptr() for tensor in (x, more, weight, total, out)]
    layer_kernels().add_norm(*places, 1e-6, rows=rows, n=n)
    assert torch.equal(total, x + more)
    torch.testing.assert_close(out, RowNorm(weight, 1e-6)(x + more), atol=1e-6, rtol=1e-5)


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(1, 9), n=st.sampled_from([8, 24, 4864]), size=st.sampled_from([1e-3, 1.0, 30.0, 1e4]))
def test_the_gate(rows: int, n: int, size: float) -> None:
    torch.manual_seed(rows)
    both, out = torch.randn(rows, 2 * n) * size, torch.empty(rows, n)
    layer_kernels().gate(both.data_ptr(), out.data_ptr(), rows=rows, n=n)
    expected = functional.silu(both[:, :n].double()) * both[:, n:].double()
    torch.testing.assert_close(out.double(), expected, atol=1e-30, rtol=2e-6)


def test_the_gate_of_what_is_no_number_stays_there() -> None:
    both, out = torch.ones(2, 16), torch.empty(2, 8)
    both[0, 3] = torch.nan
    layer_kernels().gate(both.data_ptr(), out.data_ptr(), rows=2, n=8)
    assert out.isnan().nonzero().tolist() == [[0, 3]]


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [rows, heads, dim], cos and sin [rows, dim]."""
    half = x.shape[-1] // 2
    swapped = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos.unsqueeze(1) + swapped * sin.unsqueeze(1)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 16), (3, 1, 80), (2, 2, 64)])
def test_heads_are_normed_turned_and_placed(heads: int, kv_heads: int, dim: int, normed: bool) -> None:
    torch.manual_seed(0)
    rows, size = 6, 4
    product = torch.randn(rows, (heads + 2 * kv_heads) * dim)
    given = product.view(rows, -1, dim).clone()
    cos, sin, weights = torch.randn(rows, dim), torch.randn(rows, dim), torch.randn(2, dim)
    keys, values = torch.zeros(5, size, kv_heads, dim), torch.zeros(5, size, kv_heads, dim)
    slots = torch.tensor([7, 0, 19, 4, 5, 11])
    floats = [t.data_ptr() for t in (product, cos, sin, weights[0], weights[1], keys, values)]
    sizes = (slots.data_ptr(), heads, kv_heads, dim, normed, 1e-6)
    layer_kernels().place_heads(*floats, *sizes, rows=rows, n=product.shape[1])
    q, k, v = given.split([heads, kv_heads, kv_heads], dim=1)
    if normed:
        q, k = RowNorm(weights[0], 1e-6)(q), RowNorm(weights[1], 1e-6)(k)
    close = {"atol": 1e-6, "rtol": 1e-5}
    torch.testing.assert_close(product.view(rows, -1, dim)[:, :heads], turned(q, cos, sin), **close)
    torch.testing.assert_close(keys.flatten(0, 1)[slots], turned(k, cos, sin), **close)
    assert torch.equal(values.flatten(0, 1)[slots], v)
    untouched = [slot for slot in range(5 * size) if slot not in slots.tolist()]
    assert not keys.flatten(0, 1)[untouched].any()
    assert not values.flatten(0, 1)[untouched].any()
