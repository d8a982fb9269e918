"""The CPU's look at one row: where its rough sums must not decide, rows of nothing. test_filters.py has the rest."""

import math
from itertools import accumulate

import pytest
import torch

from core.filters import block_maxima, survivors
from core.row_filters import survivors_of_row
from core.sampling_params import SamplingParams
from tests.core import sampling_oracle as oracle


def kept_ids(row, params, temperature=1.0):
    left = survivors_of_row(row.numpy(), block_maxima(row).numpy(), params, temperature)
    assert len(left.ids) == len(left.scaled)
    return left.ids.tolist()


@pytest.mark.parametrize("cut", [1, 7, 30, 63, 64, 200])
@pytest.mark.parametrize("off", [-1e-4, -1e-6, -1e-9, 1e-9, 1e-6, 1e-4])
def test_a_cut_closer_than_single_precision_can_tell(cut, off):
    """top_p a hair above or below what the first `cut` tokens sum to."""
    row = torch.randn(30_000, generator=torch.Generator().manual_seed(cut))
    row[:300] += torch.linspace(9, 5, 300)
    weights = [math.exp(x - row.max().item()) for x in sorted(row.tolist(), reverse=True)]
    top_p = list(accumulate(weights))[cut - 1] / math.fsum(weights) * (1 + off)
    kept = kept_ids(row, SamplingParams(top_p=top_p))
    assert len(kept) == (cut if off < 0 else cut + 1)
    assert sorted(kept) == sorted(oracle.survivors(row.tolist(), SamplingParams(top_p=top_p), 1.0))


@pytest.mark.parametrize("vocab", [63, 64, 65, 5000, 8191])
@pytest.mark.parametrize("params", [SamplingParams(top_p=0.9), SamplingParams(min_p=0.2), SamplingParams(top_k=5)])
def test_masked_and_broken_rows_keep_something(vocab, params):
    masked = torch.full((vocab,), -math.inf)
    assert kept_ids(masked, params)
    masked[vocab // 2] = 3.0
    assert kept_ids(masked, params)[0] == vocab // 2
    assert kept_ids(torch.full((vocab,), math.nan), params)
    broken = torch.randn(vocab, generator=torch.Generator().manual_seed(1))
    broken[vocab // 3] = math.nan
    assert kept_ids(broken, params)


@pytest.mark.parametrize("temperature", [1e-38, 1e-39, 1e-300])
def test_a_tie_at_a_temperature_that_single_precision_lacks(temperature):
    row = torch.randperm(6400, generator=torch.Generator().manual_seed(3)).float()
    row[[7, 900]] = 7000.0
    assert kept_ids(row, SamplingParams(top_p=0.9, min_p=0.05), temperature) == [7, 900]


def test_an_infinite_logit_is_all_that_is_left():
    row = torch.randn(6400, generator=torch.Generator().manual_seed(4))
    row[70] = math.inf
    assert kept_ids(row, SamplingParams(top_p=0.9))[0] == 70


def test_a_temperature_changes_what_is_kept():
    row = torch.randn(9000, generator=torch.Generator().manual_seed(5)) * 3
    params = SamplingParams(top_p=0.8)
    counts = [len(kept_ids(row, params, temperature)) for temperature in (0.3, 0.7, 1.0, 1.5)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    for temperature, count in zip((0.3, 0.7, 1.0, 1.5), counts, strict=True):
        assert count == len(oracle.survivors(row.tolist(), params, temperature))
        left = survivors(row[None], block_maxima(row[None]), params, temperature)
        assert int(left.kept) == count
