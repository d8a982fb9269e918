"""Row kernels against the same arithmetic in numpy, whoever else is in the batch and however rows are shared out."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from core.models import row_kernels as module
from core.models.row_kernels import row_kernels

SIZES = st.sampled_from([1, 2, 15, 16, 17, 64, 100, 257])
SCALES = st.sampled_from([0.0, 1e-38, 1e-20, 1e-3, 1.0, 1e5, 1e37])


def rows_of(rows: int, n: int, scale: float, seed: int) -> Tensor:
    return torch.randn(rows, n, generator=torch.Generator().manual_seed(seed)) * scale


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    steps, out = torch.empty(len(x)), torch.empty_like(x)
    row_kernels().quantise(x.data_ptr(), out.data_ptr(), steps.data_ptr(), rows=len(x), n=x.shape[1])
    return steps, out


def split(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    steps, both = torch.empty(len(x)), torch.empty(2 * len(x), x.shape[1])
    row_kernels().split(x.data_ptr(), both.data_ptr(), steps.data_ptr(), rows=len(x), n=x.shape[1])
    return steps, both[: len(x)], both[len(x) :]


@settings(max_examples=100, deadline=None)
@given(rows=st.integers(1, 9), n=SIZES, scale=SCALES, seed=st.integers(0, 999))
def test_quantised_rows_are_whole_numbers_within_half_a_step_of_the_row(
    rows: int, n: int, scale: float, seed: int
) -> None:
    x = rows_of(rows, n, scale, seed)
    steps, out = quantised(x)
    assert torch.equal(out, out.round())
    assert out.abs().max() <= 63
    assert ((out.double() * steps.double().unsqueeze(1) - x).abs() <= 0.50001 * steps.unsqueeze(1)).all()
    expected = (x.abs().amax(1) / 63).clamp_min(torch.finfo(torch.float32).tiny)
    torch.testing.assert_close(steps, expected, rtol=1e-6, atol=0)


@settings(max_examples=100, deadline=None)
@given(rows=st.integers(1, 9), n=SIZES, scale=SCALES, seed=st.integers(0, 999))
def test_the_two_halves_of_a_split_stand_for_the_row(rows: int, n: int, scale: float, seed: int) -> None:
    x = rows_of(rows, n, scale, seed)
    steps, coarse, fine = split(x)
    for half in (coarse, fine):
        assert torch.equal(half, half.round())
        assert half.abs().max() <= 63
    value = (coarse.double() + fine.double() / 126) * steps.double().unsqueeze(1)
    # Half a fine step, and what rounding the quotient to float32 moves.
    assert ((value - x).abs() <= (0.5 / 126 + 1e-5) * steps.unsqueeze(1)).all()


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_broken_stays_so_and_spoils_no_other(strange: float) -> None:
    x = rows_of(3, 40, 1.0, 1)
    x[1, 7] = strange
    steps, coarse, fine = split(x)
    assert not steps[1].isfinite()
    alone = split(x[2:].clone())
    assert torch.equal(steps[2:], alone[0])
    assert torch.equal(coarse[2:], alone[1])
    assert torch.equal(fine[2:], alone[2])


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 9), n=SIZES, biased=st.booleans(), seed=st.integers(0, 999))
def test_products_are_put_together_and_scaled(rows: int, n: int, biased: bool, seed: int) -> None:
    products, steps, bias = (
        rows_of(2 * rows, n, 9.0, seed),
        rows_of(1, rows, 1.0, seed + 1)[0],
        rows_of(1, n, 1.0, 5)[0],
    )
    whole = products[:rows].double() + products[rows:].double() / 126
    expected = whole * steps.double().unsqueeze(1) + (bias.double() if biased else 0)
    plain = products[:rows].clone()
    address = bias.data_ptr() if biased else 0
    row_kernels().finish_split(products.data_ptr(), steps.data_ptr(), address, biased, rows=rows, n=n)
    torch.testing.assert_close(products[:rows].double(), expected, rtol=1e-5, atol=1e-5)
    expected = plain.double() * steps.double().unsqueeze(1) + (bias.double() if biased else 0)
    row_kernels().finish(plain.data_ptr(), steps.data_ptr(), address, biased, rows=rows, n=n)
    torch.testing.assert_close(plain.double(), expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 9), n=SIZES, scale=st.sampled_from([1e-6, 1.0, 1e5]), seed=st.integers(0, 999))
def test_rows_are_normalised_by_their_root_mean_square(rows: int, n: int, scale: float, seed: int) -> None:
    x, weight = rows_of(rows, n, scale, seed), rows_of(1, n, 1.0, seed + 1)[0]
    out = torch.empty_like(x)
    row_kernels().rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), 1e-6, rows=rows, n=n)
    expected = x.double() / (x.double().pow(2).mean(1, keepdim=True) + 1e-6).sqrt() * weight.double()
    torch.testing.assert_close(out.double(), expected, rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_sharing_rows_among_threads_changes_no_bit(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = rows_of(13, 50, 2.0, 3), rows_of(1, 50, 1.0, 4)[0]

    def all_kernels() -> list[Tensor]:
        norm = torch.empty_like(x)
        row_kernels().rms_norm(x.data_ptr(), weight.data_ptr(), norm.data_ptr(), 1e-6, rows=13, n=50)
        steps, coarse, fine = split(x)
        products = torch.cat([coarse, fine])
        row_kernels().finish_split(products.data_ptr(), steps.data_ptr(), weight.data_ptr(), True, rows=13, n=50)
        return [norm, steps, coarse, fine, products[:13], *quantised(x)]

    alone = all_kernels()
    monkeypatch.setattr(module, "_SHARED_SIZE", 0)
    monkeypatch.setattr(module.torch, "get_num_threads", lambda: threads)
    for one, other in zip(alone, all_kernels(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("error", [RuntimeError("cannot cache function: no locator available"), OSError(28, "full")])
@pytest.mark.parametrize(
    "where", ["numba.core.ccallback.CFunc.enable_caching", "numba.core.caching.Cache.save_overload"]
)
def test_a_folder_that_cannot_be_written_keeps_nothing_from_working(
    where: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_place(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(where, no_place)
    monkeypatch.setattr("numba.core.caching.Cache.load_overload", lambda *arguments: None)  # as at the first start
    row_kernels.cache_clear()
    try:
        x = rows_of(2, 16, 1.0, 1)
        assert np.isfinite(split(x)[1].numpy()).all()
    finally:
        row_kernels.cache_clear()
