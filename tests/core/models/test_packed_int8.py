"""8-bit layers: what they compute is what their quantised numbers say, and how far that is from the truth."""

import copy
import math
import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor
from torch.nn import functional

from core.models import int8_fbgemm, packed_int8
from core.models.byte_dots import available
from core.models.int8_fbgemm import exact_reach
from core.models.packed_int8 import Int8Linear, Int8MixedLinear, Int8SplitLinear
from core.models.packed_linear import packing_available
from tests.core.models.test_packed_linear import layer_parts

pytestmark = pytest.mark.skipif(not packing_available(), reason="this CPU has no FBGEMM kernels")

LAYERS = [Int8Linear, Int8MixedLinear, Int8SplitLinear]
Layer = Int8Linear | Int8MixedLinear | Int8SplitLinear


@pytest.fixture(params=["fbgemm-63", "fbgemm-127", "bytes-127"], autouse=True)
def reach(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Every test by both ways to multiply: FBGEMM as on a machine whose products want 7-bit rows, and with 8 bits where
    they are exact here; and the machine's own dot products of bytes, where it has them."""
    kernel, _, reach = request.param.partition("-")
    if kernel == "bytes" and not available():
        pytest.skip("this machine has no AVX-512 VNNI")
    if kernel == "fbgemm" and int(reach) > exact_reach():
        pytest.skip("this machine's products are exact with 7-bit rows alone")
    if kernel == "fbgemm":
        monkeypatch.setattr(packed_int8, "takes", lambda _: False)
    monkeypatch.setattr(packed_int8, "exact_reach", lambda: int(reach))
    return int(reach)


def unpacked(layer: Layer) -> Tensor:
    """The weights it holds, float64."""
    weight, scales = layer.unpacked()
    return weight.double() * scales.double().unsqueeze(1)


def stands_for(x: Tensor, layer: Layer) -> Tensor:
    """What a quantised row stands for, float64: its coarse and, if it has one, its fine part put together again."""
    reach = layer._reach
    scale = (x.abs().amax(-1, keepdim=True) / reach).clamp_min(torch.finfo(torch.float32).tiny)
    steps = x / scale
    coarse = steps.round()
    fine = ((steps - coarse) * 2 * reach).round().double() / (2 * reach)
    refined = coarse.double().square().mean(-1, keepdim=True) < layer.enough
    return (coarse.double() + fine * refined) * scale.double()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pack=st.sampled_from(LAYERS),
    rows=st.integers(1, 33),
    out=st.integers(1, 90),
    inner=st.integers(1, 200),
    size=st.sampled_from([1e-30, 1e-6, 1.0, 1e6, 1e30]),
    outliers=st.lists(st.integers(0, 32), max_size=9),
    zeros=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_product_is_that_of_the_quantised_numbers(
    pack: type[Layer],
    rows: int,
    out: int,
    inner: int,
    size: float,
    outliers: list[int],
    zeros: bool,
    bias: bool,
    seed: int,
) -> None:
    weight, b = layer_parts(out, inner, seed)
    b *= size
    layer = pack(weight, b if bias else None)
    x = torch.randn(rows, inner, generator=torch.Generator().manual_seed(seed)) * size
    for row in outliers:
        x[row % rows, -1] = 3000 * size
    if zeros:
        x[-1] = 0
    expected = stands_for(x, layer) @ unpacked(layer).T + (b.double() if bias else 0)
    # A step of the finest row more or less where a quotient lies on the edge between two, and float32's own rounding.
    finest = x.abs().amax(-1, keepdim=True).double() / layer._reach
    if pack is Int8SplitLinear:
        finest /= 2 * layer._reach
    slack = finest * unpacked(layer).abs().amax(-1) * 2
    assert ((layer(x).double() - expected).abs() <= slack + 2e-6 * expected.abs() + 1e-36).all()


def test_whole_numbers_come_out_exactly(reach: int) -> None:
    """Every product an integer that float32 holds: nothing may saturate, be cut off or be rounded."""
    generator = torch.Generator().manual_seed(4)
    weight = torch.randint(0, 2, (33, 256), generator=generator) * 254.0 - 127
    x = torch.randint(-reach, reach + 1, (70, 256), generator=generator).float()
    x[:, 0] = reach
    x[:33] = torch.where(weight > 0, reach, -reach)  # the largest sums there are
    x[33:66] = -x[:33]
    for pack in LAYERS:
        assert torch.equal(pack(weight, None)(x).double(), x.double() @ weight.double().T)


def test_a_row_has_the_same_numbers_whether_its_neighbours_are_refined_or_not() -> None:
    layer = Int8MixedLinear(*layer_parts(40, 300))
    calm = torch.randn(4, 300).clamp(-2, 2)
    wild = calm.clone()
    wild[:, 7] = 500
    coarse, split = Int8Linear(*layer_parts(40, 300)), Int8SplitLinear(*layer_parts(40, 300))
    together = layer(torch.stack([calm, wild], dim=1).view(8, 300)).view(4, 2, 40)
    assert torch.equal(together[:, 1], split(wild))
    assert torch.equal(together[:, 0], coarse(calm))


def test_a_machine_that_adds_pairs_in_16_bits_gets_7_bit_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def multiply(rows: Tensor, reach: int, packed: torch.ScriptObject) -> Tensor:
        """What AVX2 does: products of unsigned and signed bytes, added two by two in lanes that saturate."""
        weight = torch.ops.quantized.linear_unpack(packed)[0].int_repr().long()
        products = (rows.long() + reach + 1).unsqueeze(1) * weight
        pairs = (products[..., ::2] + products[..., 1::2]).clamp(-(1 << 15), (1 << 15) - 1)
        return (pairs.sum(-1) - (reach + 1) * weight.sum(-1)).float()

    monkeypatch.setattr(packed_int8, "takes", lambda _: False)
    monkeypatch.setattr(int8_fbgemm, "_multiply", multiply)
    assert exact_reach.__wrapped__() == 63
    monkeypatch.setattr(packed_int8, "exact_reach", exact_reach.__wrapped__)
    test_whole_numbers_come_out_exactly(63)


def test_layers_too_wide_for_32_bits_take_fewer_bits() -> None:
    x = torch.full((1, 70_000), 3.0)
    layer = Int8Linear(torch.full((8, 70_000), 0.5), None)
    assert layer._reach == 63
    torch.testing.assert_close(layer(x), torch.full((1, 8), 105_000.0))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_error_is_bounded_by_the_two_roundings(layer: type[Layer], reach: int, bias: bool) -> None:
    weight, b = layer_parts()
    x = torch.randn(2, 5, 72)
    y = layer(weight, b if bias else None)(x)
    expected = functional.linear(x, weight, b if bias else None)
    steps = reach * 2 * reach if layer is Int8SplitLinear else reach
    # Half a step of each factor, times the other's magnitude, summed over the row at worst.
    x_step = x.abs().amax(-1, keepdim=True) / steps
    w_step = weight.abs().amax(-1) / 127
    worst = 0.5 * (x_step * weight.abs().sum(-1) + x.abs().sum(-1, keepdim=True) * w_step + 72 * x_step * w_step)
    error = (y - expected).abs()
    assert (error <= worst + 1e-5).all()
    assert error.norm() < 0.03 * expected.norm()


def test_the_fine_row_takes_the_activations_share_off_the_error() -> None:
    """With weights that 8 bits hold exactly, all that is left is the activations' rounding."""
    weight = torch.randint(-127, 128, (40, 72), generator=torch.Generator().manual_seed(2)) / 127.0
    weight[:, 0] = 1.0
    x = torch.randn(9, 72, generator=torch.Generator().manual_seed(3))
    expected = x.double() @ weight.double().T
    coarse, split = (layer(weight, None)(x).double() - expected for layer in (Int8Linear, Int8SplitLinear))
    assert split.norm() < 0.02 * coarse.norm()


@pytest.mark.parametrize("layer", LAYERS)
def test_rows_and_channels_of_zeros_survive(layer: type[Layer]) -> None:
    weight, b = layer_parts()
    weight[3] = 0
    y = layer(weight, b)(torch.zeros(2, 72))
    torch.testing.assert_close(y, b.expand(2, -1))
    y = layer(weight, None)(torch.randn(2, 72))
    assert (y[:, 3] == 0).all()


@pytest.mark.parametrize("layer", LAYERS)
def test_extreme_values_do_not_saturate_the_kernel(layer: type[Layer]) -> None:
    """Every product at its largest and of one sign: what 8-bit activations overflow on AVX2."""
    y = layer(torch.full((8, 256), 0.5), None)(torch.full((1, 256), 3.0))
    torch.testing.assert_close(y, torch.full((1, 8), 384.0))


@pytest.mark.parametrize("layer", LAYERS)
def test_the_shape_is_the_inputs(layer: type[Layer]) -> None:
    assert layer(*layer_parts())(torch.randn(1, 4, 2, 72)).shape == (1, 4, 2, 40)
    assert layer(*layer_parts())(torch.randn(0, 72)).shape == (0, 40)
    strided = torch.randn(3, 144)[:, ::2]
    whole = layer(*layer_parts())
    assert torch.equal(whole(strided), whole(strided.contiguous()))


@pytest.mark.parametrize("kind", LAYERS)
def test_rows_of_another_width_are_refused(kind: type[Layer]) -> None:
    layer = kind(*layer_parts(10, 24, 1))
    with pytest.raises(ValueError, match="12"):
        layer(torch.randn(2, 12))  # as many numbers as one row of 24


@pytest.mark.parametrize("kind", LAYERS)
def test_a_bias_that_was_converted_is_refused(kind: type[Layer]) -> None:
    with pytest.raises(TypeError, match="float16"):
        kind(*layer_parts(10, 24, 1)).half()(torch.randn(2, 24))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_copy_lives_on_without_the_original(kind: type[Layer]) -> None:
    layer, x = kind(*layer_parts(10, 24, 1)), torch.randn(2, 24)
    expected, twin = layer(x), copy.deepcopy(layer)
    assert layer.bias is not None
    layer.bias.fill_(1e6)
    assert torch.equal(twin(x), expected)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    out=st.integers(1, 70),
    inner=st.sampled_from([1, 7, 16, 100, 1000, 40000]),
    size=st.sampled_from([0.0, 1e-45, 1e-39, 1e-38, 1e-36, 1e-3, 1.0, 1e30]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    seed=st.integers(0, 1000),
)
def test_weights_are_quantised_as_torch_quantises_them(
    out: int, inner: int, size: float, dtype: torch.dtype, seed: int
) -> None:
    weight = (torch.randn(out, inner, generator=torch.Generator().manual_seed(seed)) * size).to(dtype)
    scales = weight.float().abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
    zeros = torch.zeros(out, dtype=torch.long)
    with warnings.catch_warnings(action="ignore"):
        expected = torch.quantize_per_channel(weight.float(), scales.double(), zeros, 0, torch.qint8)
    numbers, scales_held = Int8Linear(weight, None).unpacked()
    assert torch.equal(numbers, expected.int_repr())
    assert torch.equal(scales_held.double(), expected.q_per_channel_scales())


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_makes_its_own_row_none_and_no_other(kind: type[Layer], special: float) -> None:
    layer, x = kind(*layer_parts()), torch.randn(3, 72)
    expected = layer(x)
    x[1, 5] = special
    found = layer(x)
    assert not found[1].isfinite().any()
    assert torch.equal(found[::2], expected[::2])
