"""The race's noise: pure, reproducible anywhere, never 0 or infinite, and really exponential."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.filters import block_maxima
from core.noise import BLOCK, NoiseCache, Race, RaceNoise, _exponential, exponential, race_key
from core.race import race_everything, race_pruned
from core.sampling_params import SamplingParams
from tests.core import sampling_oracle as oracle

CPU = torch.device("cpu")
seeds = st.integers(0, (1 << 64) - 1)


def whole(races, vocab, device=CPU):
    """E(v) of every race and token, float64 [races, vocab]."""
    drawn = RaceNoise.draw(races, -(-vocab // BLOCK), device)
    lines = torch.arange(len(races), device=device)
    return drawn.neg_log_exponential(lines, torch.arange(vocab, device=device)[None]).neg().exp()


def of_position(params, position, ids, vocab, cache=None):
    """-log E(v) of the ids, or of all below vocab, as the race asks for them, float64 [m]."""
    ids = torch.arange(vocab) if ids is None else ids
    drawn = (cache or NoiseCache()).draw([(params, position)], vocab, CPU)
    return drawn.neg_log_exponential(torch.zeros(1, dtype=torch.int64), ids[None])[0]


@settings(deadline=None)
@given(seeds, st.integers(0, 200), st.integers(0, 1 << 40), st.integers(1, 300))
def test_equals_the_hash_written_out(seed, choice_index, position, vocab):
    params = SamplingParams(seed=seed, choice_index=choice_index)
    got = of_position(params, position, None, vocab)
    want = [-math.log(oracle.noise(params, position, v)) for v in range(vocab)]
    assert got.tolist() == pytest.approx(want, rel=1e-13, abs=1e-13)
    alone = [-math.log(exponential(race_key(params, position), v)) for v in range(vocab)]
    assert alone == pytest.approx(want, rel=1e-13, abs=1e-13)


def test_known_values():
    """Pinned: a seed must give the same answer after an upgrade."""
    params = SamplingParams(seed=42)
    got = of_position(params, 7, torch.tensor([0, 1, 63, 64, 151935]), 151936)
    assert got.tolist() == pytest.approx(
        [3.056772318100703, 3.5416300174478836, 6.633975912377405, 2.7509084476110686, 0.8023165660235273], rel=1e-12
    )


@settings(deadline=None)
@given(seeds, st.integers(0, 1 << 30), st.lists(st.integers(0, 999), min_size=1, max_size=20))
def test_depends_on_nothing_but_the_token_id(seed, position, ids):
    params = SamplingParams(seed=seed)
    cache, other = NoiseCache(), NoiseCache()
    small = of_position(params, position, None, 1000, cache)
    padded = of_position(params, position, None, 1024 + 37, cache)
    picked = of_position(params, position, torch.tensor(ids), 1000, other)
    assert torch.equal(small, padded[:1000])
    torch.testing.assert_close(picked, small[ids], rtol=1e-14, atol=1e-14)


def test_temperature_and_filters_do_not_move_it():
    one, two = SamplingParams(seed=5), SamplingParams(seed=5, temperature=0.3, top_k=7, logit_bias={1: 2.0})
    assert torch.equal(of_position(one, 3, None, 99), of_position(two, 3, None, 99))


def test_extreme_hashes_give_finite_positive_variates():
    extremes = torch.tensor([0, -1, 1, (1 << 63) - 1, -(1 << 63)])
    variates = _exponential(extremes)
    assert variates.isfinite().all()
    assert (variates > 1e-17).all()
    assert variates.max() < 37


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), min_size=1, max_size=8), max_size=6))
def test_draft_and_target_share_what_was_drawn(asked):
    """Whoever asks for which positions of which sequences in which order: the noise is what it is, drawn once."""
    fresh = RaceNoise.draw
    drawn: list[Race] = []

    def counting(races, count, device):
        drawn.extend(races)
        return fresh(races, count, device)

    cache = NoiseCache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RaceNoise, "draw", counting)
        for pairs in asked:
            races = [(SamplingParams(seed=seed), position) for seed, position in pairs]
            got, want = cache.draw(races, 600, CPU), fresh(races, 10, CPU)
            for name in ("keys", "minimum", "holder", "bound"):
                assert torch.equal(getattr(got, name), getattr(want, name))
    names = [(params.seed, position) for params, position in drawn]
    assert sorted(names) == sorted({pair for pairs in asked for pair in pairs})


def test_a_wider_and_a_narrower_vocabulary_see_the_same_noise():
    cache, races = NoiseCache(), [(SamplingParams(seed=1), position) for position in range(3)]
    narrow, wide, again = (cache.draw(races, vocab, CPU).minimum for vocab in (500, 700, 500))
    assert (narrow.shape[1], wide.shape[1], again.shape[1]) == (8, 11, 8)
    assert torch.equal(wide[:, :8], narrow)
    assert torch.equal(again, narrow)


def test_block_bound_is_never_exceeded():
    races = [(SamplingParams(seed=s), 0) for s in range(50)]
    drawn = RaceNoise.draw(races, 20, CPU)
    scores = drawn.neg_log_exponential(torch.arange(50), torch.arange(1280)[None])
    torch.testing.assert_close(scores.view(50, 20, BLOCK).amax(-1), drawn.bound, rtol=1e-14, atol=1e-14)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_same_on_cuda():
    races = [(SamplingParams(seed=s), s * 17) for s in range(8)]
    cpu, cuda = RaceNoise.draw(races, 500, CPU), RaceNoise.draw(races, 500, torch.device("cuda"))
    assert torch.equal(cpu.holder, cuda.holder.cpu())
    torch.testing.assert_close(whole(races, 32000), whole(races, 32000, torch.device("cuda")).cpu(), rtol=1e-13, atol=0)


# --- statistics: fixed seeds, so a failure is a defect and not bad luck ---

MANY_POSITIONS = [(SamplingParams(seed=2024), position) for position in range(20000)]
MANY_SEEDS = [(SamplingParams(seed=seed), 123) for seed in range(20000)]
MANY_CHOICES = [(SamplingParams(seed=9, choice_index=index), 123) for index in range(20000)]
STREAMS = pytest.mark.parametrize(
    "races", [MANY_POSITIONS, MANY_SEEDS, MANY_CHOICES], ids=["positions", "seeds", "choices"]
)


def chi_square(counts, probabilities):
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@STREAMS
def test_race_draws_from_softmax(races):
    """Chi-square over 70 tokens (two blocks): 69 degrees of freedom, standard deviation 11.7."""
    row = torch.randn(70, generator=torch.Generator().manual_seed(0))
    logits = row.expand(len(races), -1).contiguous()
    maxima, rows = block_maxima(logits), torch.arange(len(races))
    winners = race_pruned(logits, maxima, rows, races, NoiseCache())
    assert torch.equal(winners, race_everything(logits, rows, races, NoiseCache()))
    counts = winners.bincount(minlength=70).double()
    assert chi_square(counts, row.double().softmax(0)) < 69 + 4 * 11.7


@STREAMS
def test_variates_are_exponential(races):
    """Kolmogorov-Smirnov on tokens of one block and across blocks; 1.95 is the 0.1 % point."""
    variates = whole(races, 200)
    for token in (0, 1, 63, 64, 199):
        cdf = 1 - (-variates[:, token].sort().values).exp()
        steps = torch.arange(1, len(races) + 1, dtype=torch.float64) / len(races)
        assert float((cdf - steps).abs().max()) * math.sqrt(len(races)) < 1.95


@STREAMS
def test_neighbouring_races_are_uncorrelated(races):
    """Of token 5's uniforms: 1 / sqrt(20000) = 0.007 is one standard deviation."""
    uniforms = (-whole(races, 64)[:, 5]).exp()
    for lag in (1, 2, 7, 64):
        pair = torch.stack([uniforms[:-lag], uniforms[lag:]])
        assert abs(float(pair.corrcoef()[0, 1])) < 4 * 0.0071


def test_neighbouring_tokens_are_uncorrelated():
    """Within a block too, where all tokens share the block's minimum."""
    uniforms = (-whole(MANY_POSITIONS[:2000], 128)).exp()
    correlations = uniforms.T.corrcoef()
    off_diagonal = correlations - torch.eye(128, dtype=torch.float64)
    assert float(off_diagonal.abs().max()) < 5.2 / math.sqrt(2000)  # 8,128 pairs
    assert abs(float(off_diagonal.sum())) / (128 * 127) < 4 / math.sqrt(2000 * 128 * 127 / 2)


def test_diagonals_of_position_and_token_are_uncorrelated():
    """A counter that added position and token before mixing would repeat itself along one of these."""
    uniforms = (-whole(MANY_POSITIONS[:4000], 130)).exp()
    for step in (-1, 1, 64):
        pair = torch.stack([uniforms[:-1, 64:66].flatten(), uniforms[1:, 64 + step : 66 + step].flatten()])
        assert abs(float(pair.corrcoef()[0, 1])) < 4 / math.sqrt(8000)


def test_the_least_of_a_block_is_anywhere_with_equal_chance():
    holders = whole(MANY_SEEDS, 64).argmin(1).bincount(minlength=64).double()
    assert chi_square(holders, torch.full((64,), 1 / 64, dtype=torch.float64)) < 63 + 4 * 11.2
