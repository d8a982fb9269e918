"""Packed layers: near float32, and every row by itself."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.nn import functional

from core.models import packed_linear
from core.models.packed_linear import Fp16Linear, HalfEmbedding, Int8Linear, packing_available

pytestmark = pytest.mark.skipif(not packing_available(), reason="this CPU has no FBGEMM kernels")


def layer_parts(out: int = 40, inner: int = 72, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(out, inner, generator=generator) * 0.1, torch.randn(out, generator=generator)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_fp16_is_float32_with_weights_rounded_to_half(rows: int, bias: bool) -> None:
    weight, b = layer_parts()
    x = torch.randn(1, rows, 72)
    y = Fp16Linear(weight, b if bias else None)(x)
    assert y.shape == (1, rows, 40)
    expected = functional.linear(x, weight.half().float(), b if bias else None)
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_int8_error_is_bounded_by_its_two_roundings(bias: bool) -> None:
    weight, b = layer_parts()
    x = torch.randn(2, 5, 72)
    y = Int8Linear(weight, b if bias else None)(x)
    expected = functional.linear(x, weight, b if bias else None)
    # Half a step of each factor, times the other's magnitude, summed over the row at worst.
    x_step = x.abs().amax(-1, keepdim=True) / 63
    w_step = weight.abs().amax(-1) / 127
    worst = 0.5 * (x_step * weight.abs().sum(-1) + x.abs().sum(-1, keepdim=True) * w_step + 72 * x_step * w_step)
    error = (y - expected).abs()
    assert (error <= worst + 1e-5).all()
    assert error.norm() < 0.03 * expected.norm()


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 20), row=st.integers(0, 19), loud=st.floats(1e-3, 1e5), seed=st.integers(0, 1000))
def test_int8_rows_are_bitwise_independent(rows: int, row: int, loud: float, seed: int) -> None:
    weight, b = layer_parts()
    layer = Int8Linear(weight, b)
    x = torch.randn(rows, 72, generator=torch.Generator().manual_seed(seed))
    row %= rows
    company = x * loud
    company[row] = x[row]
    assert torch.equal(layer(company)[row], layer(x[row : row + 1])[0])


def test_int8_survives_rows_and_channels_of_zeros() -> None:
    weight, b = layer_parts()
    weight[3] = 0
    y = Int8Linear(weight, b)(torch.zeros(2, 72))
    torch.testing.assert_close(y, b.expand(2, -1))
    y = Int8Linear(weight, None)(torch.randn(2, 72))
    assert (y[:, 3] == 0).all()


def test_extreme_values_do_not_saturate_the_kernel() -> None:
    """Every product at its largest and of one sign: what 8-bit activations would overflow on AVX2."""
    y = Int8Linear(torch.full((8, 256), 0.5), None)(torch.full((1, 256), 3.0))
    torch.testing.assert_close(y, torch.full((1, 8), 384.0))


def test_packing_is_quiet_and_leaves_the_process_as_it_was(recwarn: pytest.WarningsRecorder) -> None:
    before = torch.backends.quantized.engine
    Int8Linear(*layer_parts())
    assert torch.backends.quantized.engine == before
    assert [str(w.message) for w in recwarn] == []


def test_half_embedding_looks_up_float32_rows() -> None:
    weight, _ = layer_parts()
    out = HalfEmbedding(weight)(torch.tensor([[0, 3]]))
    assert out.dtype == torch.float32
    assert torch.equal(out[0], weight[[0, 3]].half().float())


def test_missing_kernels_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise RuntimeError("Didn't find engine for operation quantized::linear_prepack_fp16")

    packing_available.cache_clear()
    monkeypatch.setattr(packed_linear.torch.ops.quantized, "linear_prepack_fp16", absent)
    try:
        assert not packing_available()
    finally:
        packing_available.cache_clear()
