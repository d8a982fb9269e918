"""exp and tanh of lanes, against float64."""

import ctypes
from typing import Any

import numpy as np
import pytest
from numba import cfunc, types

from core.models import attention_kernel, int8_kernel, layer_kernels, run_kernel
from core.models.compiling import digest
from core.models.lanes import exp, load, store, tanh, zeros8, zeros16

Floats = np.ndarray[Any, np.dtype[np.float32]]
FLOATS = types.CPointer(types.float32)


def in_lanes(function: Any, zeros: Any, width: int, x: Floats) -> Floats:
    @cfunc(types.void(FLOATS, FLOATS, types.intp))  # type: ignore[untyped-decorator]
    def run(given, out, count):  # type: ignore[no-untyped-def]
        like = zeros()
        for i in range(0, count, width):
            store(out, i, function(load(like, given, i)))

    out = np.empty_like(x)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ssize_t)(run.address)(
        x.ctypes.data, out.ctypes.data, x.size
    )
    return out


@pytest.mark.parametrize(("zeros", "width"), [(zeros8, 8), (zeros16, 16)])
def test_exp_is_within_two_units_in_the_last_place(zeros: Any, width: int) -> None:
    x = -np.random.default_rng(0).uniform(0, 87, 1 << 14).astype(np.float32)
    x[:16] = np.float32(10.0) ** np.arange(-15, 1) * -1
    exact = np.exp(x.astype(np.float64))
    assert np.all(np.abs(in_lanes(exp, zeros, width, x) - exact) <= 2 * np.spacing(exact.astype(np.float32)))


def test_exp_of_the_special_numbers() -> None:
    x = np.array([0.0, -0.0, -np.inf, np.nan, -87.5, -1e30, -3.4e38, -1e-30] * 2, dtype=np.float32)
    expected = np.array([1, 1, 0, np.nan, 0, 0, 0, 1] * 2, dtype=np.float32)
    assert np.array_equal(in_lanes(exp, zeros16, 16, x), expected, equal_nan=True)


def test_tanh_is_within_rounding_and_keeps_signs() -> None:
    x = np.linspace(-50, 50, 1 << 14).astype(np.float32)
    out = in_lanes(tanh, zeros8, 8, x)
    assert np.abs(out - np.tanh(x.astype(np.float64))).max() < 2e-7
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 0.0], dtype=np.float32)
    assert np.array_equal(in_lanes(tanh, zeros8, 8, special), np.tanh(special), equal_nan=True)


@pytest.mark.parametrize(
    ("files", "sources"),
    [
        (attention_kernel.SOURCE_FILES, attention_kernel.SOURCES),
        (int8_kernel.SOURCE_FILES, int8_kernel.SOURCES),
        (layer_kernels.SOURCE_FILES, layer_kernels.SOURCES),
        (run_kernel.SOURCE_FILES, run_kernel.SOURCES),
    ],
)
def test_compiled_code_that_was_kept_is_of_this_state_of_the_sources(files: tuple[str, ...], sources: str) -> None:
    """A change there must change the file whose date numba looks at, or nothing would be kept."""
    assert sources == digest(files)
