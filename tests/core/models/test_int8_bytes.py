"""Products by the machine's own dot products of bytes, against FBGEMM's."""

import math
import os
import subprocess
import sys

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from core.models.byte_dots import available
from core.models.int8_bytes import BytesProduct
from core.models.int8_fbgemm import FbgemmProduct, exact_reach
from core.models.packed_linear import packing_available

_LAYER = """
import torch
from core.models.packed_int8 import Int8Linear
layer = Int8Linear(torch.ones(64, 64), None)
print(type(layer._product).__name__, layer(torch.ones(1, 64)).sum().item())
"""


@pytest.mark.skipif(
    not (available() and packing_available() and exact_reach() == 127), reason="this machine multiplies in one way only"
)
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    outs=st.lists(st.integers(1, 150), min_size=1, max_size=3),
    groups=st.integers(1, 80),
    enough=st.sampled_from([0.0, 64.0, math.inf]),
    wild=st.lists(st.integers(0, 39), max_size=9),
    special=st.sampled_from([0.0, math.nan, 1e-42]),
    bias=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_both_ways_to_multiply_give_the_same_bits(
    rows: int,
    outs: list[int],
    groups: int,
    enough: float,
    wild: list[int],
    special: float,
    bias: bool,
    threads: int,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(out, 4 * groups, generator=generator) for out in outs]
    x = torch.randn(rows, 4 * groups, generator=generator)
    for row in wild:
        x[row % rows, row % (4 * groups)] = 700
    x[-1, 0] = special
    b = torch.randn(sum(outs), generator=generator) if bias else None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found, expected = (kind(parts)(x, 127, enough, b) for kind in (BytesProduct, FbgemmProduct))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.skipif(not packing_available(), reason="this CPU has no FBGEMM kernels")
@pytest.mark.parametrize("switch", [{"NUMBA_ENABLE_AVX": "0"}, {"NUMBA_CPU_NAME": "generic"}])
def test_a_machine_for_which_numba_may_not_use_it_multiplies_as_others_do(switch: dict[str, str]) -> None:
    told = subprocess.run([sys.executable, "-c", _LAYER], env={**os.environ, **switch}, capture_output=True, text=True)
    assert told.stdout.split() == ["FbgemmProduct", "4096.0"], told.stderr[-500:]
