"""top-k, top-p and min-p against whole sorts, in every way the fast paths can take."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from core.filters import argmax, block_maxima, leaders, log_mass, ranked_rows, survivors, survivors_of_rows
from core.sampling_params import SamplingParams
from tests.core import sampling_oracle as oracle
from tests.core.sampling_cases import kinds, logits_of, sampling_params, temperatures

vocabs = st.integers(1, 400)
seeds = st.integers(0, 100000)


def kept_ids(row, params, temperature, by_blocks=True):
    rows = row[None]
    left = survivors(rows, block_maxima(rows) if by_blocks else None, params, temperature)
    assert left.alive.sum() == left.kept
    return left.ids[0, : int(left.kept)].tolist()


def decided(row, params, temperature):
    """Whether no sum lies so close to p that the order of adding would decide. Equal weights add exactly."""
    z = sorted(oracle.scaled(row, temperature), reverse=True)[: params.top_k or None]
    total, mass = math.fsum(map(math.exp, z)), 0.0
    if len(set(z)) == 1:
        return True
    for x in z:
        mass += math.exp(x)
        if params.top_p < 1.0 and abs(mass - params.top_p * total) < 1e-11 * total:
            return False
    return True


@settings(deadline=None, max_examples=300)
@given(sampling_params(), temperatures.filter(bool), seeds, vocabs, kinds, st.booleans())
def test_survivors_equal_the_oracles(params, temperature, seed, vocab, kind, by_blocks):
    row = logits_of(seed, 1, kind, vocab)[0]
    assume(params.has_filters and decided(row.tolist(), params, temperature))
    want = oracle.survivors(row.tolist(), params, temperature)
    assert sorted(kept_ids(row, params, temperature, by_blocks)) == sorted(want)


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from([0, 2, 40, 900]),
    st.sampled_from([1.0, 0.5, 0.9, 0.99, 0.999999]),
    st.sampled_from([0.0, 1e-4, 0.05]),
    st.sampled_from([0.4, 1.0, 3.0]),
    seeds,
    kinds,
)
def test_survivors_of_a_large_vocabulary(top_k, top_p, min_p, temperature, seed, kind):
    """20,000 tokens: the first look, the histogram and the tie rules all come into play."""
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    assume(params.has_filters)
    row = logits_of(seed, 1, kind, 20011)[0]
    row[:300] += 6
    assume(decided(row.tolist(), params, temperature))
    want = oracle.survivors(row.tolist(), params, temperature)
    assert sorted(kept_ids(row, params, temperature)) == sorted(want)
    assert sorted(kept_ids(row, params, temperature, by_blocks=False)) == sorted(want)


@pytest.mark.parametrize(
    ("top_p", "min_p", "kept"), [(0.7, 0.0, 75), (0.5, 0.55, 47), (0.7, 0.55, 60), (1.0, 0.45, 80)]
)
def test_the_first_look_is_not_taken_for_the_whole_row(top_p, min_p, kept):
    """80 tokens in as many blocks with weights exp(-i / 100), the others 0.01 % of the best each but a
    quarter of the mass together; the first look sees 64 tokens, whose least weight is 0.53."""
    row = torch.full((200_000,), math.log(1e-4))
    row[torch.arange(80) * 128] = torch.arange(80) / -100
    params = SamplingParams(top_p=top_p, min_p=min_p)
    want = oracle.survivors(row.tolist(), params, 1.0)
    assert sorted(kept_ids(row, params, 1.0)) == sorted(want)
    assert len(want) == kept


@settings(deadline=None)
@given(seeds, vocabs, kinds, st.integers(1, 500))
def test_leaders_are_the_ranked_beginning(seed, vocab, kind, at_least):
    row = logits_of(seed, 1, kind, vocab)[0]
    ids, values = leaders(row, block_maxima(row), at_least)
    ranked = sorted(range(vocab), key=lambda v: (-float(row[v]), v))
    assert ids.tolist() == ranked[: len(ids)]
    assert torch.equal(values, row[ids])
    assert len(ids) >= min(at_least, vocab)
    assert len(ids) == vocab or row[ranked[len(ids)]] < values[-1]


@settings(deadline=None)
@given(seeds, vocabs, kinds, st.integers(1, 500), st.integers(1, 4))
def test_ranked_rows_are_the_beginning_of_a_stable_sort(seed, vocab, kind, width, rows):
    logits = logits_of(seed, rows, kind, vocab)
    logits[logits == 0] *= -1  # some zeros negative, equal to the others all the same
    logits[:, seed % vocab] = torch.tensor([-math.inf, math.inf, 3e38, -1e-42])[seed % 4]
    ids, values = ranked_rows(logits, width)
    ranked = [sorted(range(vocab), key=lambda v: (-row[v], v))[:width] for row in logits.tolist()]
    assert ids.tolist() == ranked
    assert torch.equal(values, logits.gather(1, ids))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(sampling_params(temperatures.filter(bool)), kinds), min_size=1, max_size=6), seeds, vocabs)
def test_rows_filtered_together_keep_what_each_keeps_alone(batch, seed, vocab):
    logits = torch.cat([logits_of(seed + n, 1, kind, vocab) for n, (_, kind) in enumerate(batch)])
    together = survivors_of_rows(logits, [params for params, _ in batch])
    for row, (params, _) in enumerate(batch):
        alone = survivors_of_rows(logits[row : row + 1], [params])
        assert int(together.kept[row]) == int(alone.kept)
        kept = together.ids[row, : int(alone.kept)].tolist()
        assert kept == alone.ids[0, : int(alone.kept)].tolist()
        if decided(logits[row].tolist(), params, params.temperature):
            assert kept == oracle.survivors(logits[row].tolist(), params, params.temperature)


@settings(deadline=None)
@given(seeds, vocabs, kinds, st.integers(1, 4))
def test_argmax_takes_the_lowest_id_of_equals(seed, vocab, kind, rows):
    logits = logits_of(seed, rows, kind, vocab)
    want = [max(range(vocab), key=lambda v: (row[v], -v)) for row in logits.tolist()]
    assert argmax(logits, block_maxima(logits)).tolist() == want
    assert argmax(logits, None).tolist() == want


def test_equal_tokens_at_the_cut_survive_by_lowest_id():
    row = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0, 1.0])
    assert kept_ids(row, SamplingParams(top_k=3), 1.0) == [1, 3, 0]
    assert kept_ids(torch.zeros(400), SamplingParams(top_p=0.5), 1.0) == list(range(200))


def test_top_p_counts_over_what_top_k_left():
    row = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert kept_ids(row, SamplingParams(top_p=0.55), 1.0) == [0, 1]
    assert kept_ids(row, SamplingParams(top_p=0.55, top_k=2), 1.0) == [0]  # 0.4 / 0.7 = 0.57


@pytest.mark.parametrize("params", [SamplingParams(top_p=0.0), SamplingParams(min_p=1.0), SamplingParams(top_k=1)])
def test_at_least_one_token_survives(params):
    assert kept_ids(torch.tensor([1.0, 3.0, 2.0]), params, 1.0) == [1]


def test_log_mass_is_log_sum_exp_less_the_maximum():
    logits = logits_of(3, 5, "normal", 5000)
    want = torch.logsumexp(logits.double(), -1) - logits.amax(-1)
    torch.testing.assert_close(log_mass(logits).double(), want, rtol=0, atol=2e-6)
    assert torch.equal(log_mass(logits), torch.stack([log_mass(row) for row in logits]))
