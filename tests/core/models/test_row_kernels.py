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


REACHES = st.sampled_from([63, 127])
NEVER, ALWAYS = 0.0, math.inf


def quantised(x: Tensor, reach: int, enough: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """steps [rows], marks [rows], coarse [rows, n], fine [marked rows, n]."""
    count, n = x.shape
    steps, marks = torch.empty(count), torch.empty(count, dtype=torch.int32)
    out = torch.full((2 * count, n), math.nan)
    places = x.data_ptr(), out.data_ptr(), steps.data_ptr(), marks.data_ptr()
    row_kernels().quantise(*places, reach, enough, rows=count, n=n)
    row_kernels().refine(*places, reach, rows=count, n=n)
    marked = int(marks.sum())
    assert out[count + marked :].isnan().all()
    return steps, marks, out[:count], out[count : count + marked]


@settings(max_examples=100, deadline=None)
@given(rows=st.integers(1, 9), n=SIZES, scale=SCALES, reach=REACHES, seed=st.integers(0, 999))
def test_quantised_rows_are_whole_numbers_within_half_a_step_of_the_row(
    rows: int, n: int, scale: float, reach: int, seed: int
) -> None:
    x = rows_of(rows, n, scale, seed)
    steps, _, coarse, _ = quantised(x, reach, NEVER)
    assert torch.equal(coarse, coarse.round())
    assert coarse.abs().max() <= reach
    assert ((coarse.double() * steps.double().unsqueeze(1) - x).abs() <= 0.50001 * steps.unsqueeze(1)).all()
    expected = (x.abs().amax(1) / reach).clamp_min(torch.finfo(torch.float32).tiny)
    torch.testing.assert_close(steps, expected, rtol=1e-6, atol=0)


@settings(max_examples=100, deadline=None)
@given(rows=st.integers(1, 9), n=SIZES, scale=SCALES, reach=REACHES, seed=st.integers(0, 999))
def test_a_coarse_and_a_fine_row_stand_for_the_row(rows: int, n: int, scale: float, reach: int, seed: int) -> None:
    x = rows_of(rows, n, scale, seed)
    steps, marks, coarse, fine = quantised(x, reach, ALWAYS)
    assert marks.all()
    assert torch.equal(fine, fine.round())
    assert fine.abs().max() <= reach
    value = (coarse.double() + fine.double() / (2 * reach)) * steps.double().unsqueeze(1)
    # Half a fine step, and what rounding the quotient to float32 moves.
    assert ((value - x).abs() <= (0.25 / reach + 1e-5) * steps.unsqueeze(1)).all()


@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(1, 9),
    n=SIZES,
    reach=REACHES,
    enough=st.sampled_from([NEVER, 1.0, 64.0, 1000.0, ALWAYS]),
    loud=st.lists(st.floats(1.0, 3000.0), min_size=9, max_size=9),
    seed=st.integers(0, 999),
)
def test_rows_of_few_steps_get_a_fine_row_in_their_order(
    rows: int, n: int, reach: int, enough: float, loud: list[float], seed: int
) -> None:
    x = rows_of(rows, n, 1.0, seed)
    x[:, -1] *= torch.tensor(loud[:rows])
    _, marks, coarse, fine = quantised(x, reach, enough)
    assert torch.equal(marks.bool(), coarse.double().square().sum(1) < enough * n)
    _, _, _, every = quantised(x, reach, ALWAYS)
    assert torch.equal(fine, every[marks.bool()])


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_broken_stays_so_and_spoils_no_other(strange: float) -> None:
    x = rows_of(3, 40, 1.0, 1)
    x[1, 7] = strange
    steps, _, coarse, fine = quantised(x, 127, ALWAYS)
    assert not steps[1].isfinite()
    alone = quantised(x[2:].clone(), 127, ALWAYS)
    assert torch.equal(steps[2:], alone[0])
    assert torch.equal(coarse[2:], alone[2])
    assert torch.equal(fine[2:], alone[3])


@settings(max_examples=50, deadline=None)
@given(
    n=SIZES,
    biased=st.booleans(),
    reach=REACHES,
    marks=st.lists(st.booleans(), min_size=1, max_size=9),
    seed=st.integers(0, 999),
)
def test_products_are_put_together_and_scaled(n: int, biased: bool, reach: int, marks: list[bool], seed: int) -> None:
    rows, marked = len(marks), sum(marks)
    products = rows_of(rows + marked, n, 9.0, seed)
    steps, bias = rows_of(1, rows, 1.0, seed + 1)[0], rows_of(1, n, 1.0, 5)[0]
    whole = products[:rows].double()
    whole[torch.tensor(marks)] += products[rows:].double() / (2 * reach)
    expected = whole * steps.double().unsqueeze(1) + (bias.double() if biased else 0)
    fine = torch.tensor(marks, dtype=torch.int32)
    address = bias.data_ptr() if biased else 0
    row_kernels().finish(products.data_ptr(), steps.data_ptr(), fine.data_ptr(), address, biased, reach, rows=rows, n=n)
    torch.testing.assert_close(products[:rows].double(), expected, rtol=1e-5, atol=1e-5)


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
    typical = quantised(x, 127, NEVER)[2].square().mean(1).median()  # so that some rows are refined, others not

    def all_kernels() -> list[Tensor]:
        norm = torch.empty_like(x)
        row_kernels().rms_norm(x.data_ptr(), weight.data_ptr(), norm.data_ptr(), 1e-6, rows=13, n=50)
        steps, marks, coarse, fine = quantised(x, 127, float(typical))
        products = torch.cat([coarse, fine])
        arguments = products.data_ptr(), steps.data_ptr(), marks.data_ptr(), weight.data_ptr(), True, 127
        row_kernels().finish(*arguments, rows=13, n=50)
        return [norm, steps, marks, coarse, fine, products[:13]]

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
        assert np.isfinite(quantised(x, 127, ALWAYS)[3].numpy()).all()
    finally:
        row_kernels.cache_clear()
