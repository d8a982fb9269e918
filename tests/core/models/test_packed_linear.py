"""Packed layers: near float32, and every row by itself. What is 8-bit about them: test_packed_int8.py."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.nn import functional

from core.models import packed_linear
from core.models.packed_linear import PACKED, Fp16Linear, PackedLinear, packing_available

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


@pytest.mark.parametrize("pack", [PACKED["int8_split"], PACKED["int8_mixed"], PACKED["int8"]])
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 20),
    row=st.integers(0, 19),
    loud=st.floats(1e-3, 1e5),
    out=st.integers(1, 70),
    inner=st.integers(1, 130),
    seed=st.integers(0, 1000),
)
def test_rows_of_int8_are_bitwise_independent(
    pack: type[PackedLinear], rows: int, row: int, loud: float, out: int, inner: int, seed: int
) -> None:
    weight, b = layer_parts(out, inner, seed)
    layer = pack(weight, b)
    x = torch.randn(rows, inner, generator=torch.Generator().manual_seed(seed))
    row %= rows
    company = x * loud
    company[row] = x[row]
    assert torch.equal(layer(company)[row], layer(x[row : row + 1])[0])


@pytest.mark.parametrize("pack", PACKED.values())
def test_what_is_kept_is_no_view_of_what_was_given(pack: type[PackedLinear]) -> None:
    weight, b = layer_parts()
    layer, x = pack(weight, b), torch.randn(2, 72)
    before = layer(x)
    weight.zero_()
    b.zero_()
    assert torch.equal(layer(x), before)


@pytest.mark.parametrize("pack", PACKED.values())
def test_packing_is_quiet_and_leaves_the_process_as_it_was(
    pack: type[PackedLinear], recwarn: pytest.WarningsRecorder
) -> None:
    before = torch.backends.quantized.engine
    pack(*layer_parts())
    assert torch.backends.quantized.engine == before
    assert [str(w.message) for w in recwarn] == []


def test_missing_kernels_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise RuntimeError("Didn't find engine for operation quantized::linear_prepack_fp16")

    packing_available.cache_clear()
    monkeypatch.setattr(packed_linear.torch.ops.quantized, "linear_prepack_fp16", absent)
    try:
        assert not packing_available()
    finally:
        packing_available.cache_clear()
