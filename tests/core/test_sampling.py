"""Choosing tokens: the oracle's token in every row, alone or in company."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from core import sampling
from core.filters import block_maxima
from core.noise import NoiseCache
from core.penalties import RowGroup
from core.race import race_everything, race_pruned
from core.sampling import choose
from core.sampling_params import SamplingParams
from core.sequence import GenerationRequest, Sequence
from core.verifiers.params import StrictParams
from tests.core import sampling_oracle as oracle
from tests.core.sampling_cases import VOCAB, drafts_lists, kinds, logits_of, make_sequence, sampling_params
from tests.core.test_filters import decided


@st.composite
def batches(draw):
    """Groups of random requests laid out one after the other, and logits for all their rows."""
    groups, start = [], draw(st.integers(0, 2))
    for _ in range(draw(st.integers(1, 4))):
        drafts = draw(drafts_lists)
        count = draw(st.integers(1, len(drafts) + 1))
        groups.append(RowGroup(draw(make_sequence(sampling_params())), start, drafts, count))
        start += count
    return groups, logits_of(draw(st.integers(0, 100000)), start, draw(kinds))


def oracle_tokens(logits, group):
    out = []
    params = group.sequence.request.sampling
    for row, position in enumerate(group.positions):
        before = group.drafts[: group.offset + row]
        edited = oracle.edited(logits[group.start + row].tolist(), group.sequence, before)
        assume(params.greedy or decided(edited, params, params.temperature))
        out.append(oracle.pick(edited, params, position))
    return out


@settings(deadline=None, max_examples=150)
@given(batches())
def test_every_row_gets_the_oracles_token(batch):
    groups, logits = batch
    want = [oracle_tokens(logits, group) for group in groups]
    choices = choose(logits.clone(), groups, NoiseCache())
    assert [choices.of(group) for group in groups] == want


@settings(deadline=None, max_examples=100)
@given(batches())
def test_without_asking_the_host_the_tokens_are_the_same(batch):
    """The path CUDA takes, on the CPU."""
    groups, logits = batch
    for group in groups:
        oracle_tokens(logits, group)
    want = choose(logits.clone(), groups, NoiseCache())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "prunes", lambda logits: False)
        got = choose(logits.clone(), groups, NoiseCache())
    assert [got.of(group) for group in groups] == [want.of(group) for group in groups]


@settings(deadline=None, max_examples=100)
@given(batches())
def test_a_row_does_not_depend_on_its_company(batch):
    groups, logits = batch
    together, edited = logits.clone(), logits.clone()
    choices = choose(together, groups, NoiseCache())
    for group in groups:
        for row in range(group.count):
            drafts = group.drafts[: group.offset + row]
            alone = RowGroup(group.sequence, 0, drafts, 1)
            one = edited[group.start + row : group.start + row + 1].clone()
            assert choose(one, [alone], NoiseCache()).of(alone) == [choices.of(group)[row]]
            assert torch.equal(one[0], together[group.start + row])


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 5000), st.integers(0, 10000), kinds, st.sampled_from([1e-9, 0.2, 1.0, 5.0, 1e9]), st.integers(1, 6)
)
def test_pruning_never_changes_the_winner(vocab, seed, kind, temperature, count):
    logits = logits_of(seed, count, kind, vocab)
    races = [(SamplingParams(temperature=temperature, seed=seed), position) for position in range(count)]
    rows = torch.arange(count)
    pruned = race_pruned(logits, block_maxima(logits), rows, races, NoiseCache())
    assert torch.equal(pruned, race_everything(logits, rows, races, NoiseCache()))


def group_of(count=1, start=0, drafts=(), **params):
    request = GenerationRequest("r", (1, 2, 3), 100, SamplingParams(**params), StrictParams())
    return RowGroup(Sequence(request), start, [*drafts], count)


def test_draft_and_target_agree_where_their_rows_do():
    """The draft takes its steps one at a time, with a padded vocabulary; the target has all rows at once."""
    drafts, noise, target = [], NoiseCache(), logits_of(5, 5, "normal")
    padded = torch.cat([target, torch.full((5, 88), -50.0)], 1)
    for step in range(4):
        group = group_of(drafts=drafts, seed=77)
        drafts = [*drafts, *choose(padded[step : step + 1].clone(), [group], noise).of(group)]
    group = group_of(count=5, drafts=drafts, seed=77)
    assert choose(target, [group], noise).of(group)[:4] == drafts


@pytest.mark.parametrize("other", [{"seed": 1}, {"choice_index": 1}])
def test_seed_and_choice_index_make_other_answers(other):
    logits = logits_of(5, 40, "normal")
    one, two = group_of(count=40, drafts=[0] * 39, temperature=1.0), group_of(count=40, drafts=[0] * 39, **other)
    assert choose(logits, [one], NoiseCache()).of(one) != choose(logits, [two], NoiseCache()).of(two)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-9])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_a_tiny_temperature_is_greedy(temperature, filters):
    logits = logits_of(1, 6, "normal")
    group = group_of(count=6, drafts=[0] * 5, temperature=temperature, **filters)
    assert choose(logits, [group], NoiseCache()).of(group) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_a_forced_token_is_taken(temperature, filters):
    """By a bias that leaves no room, against rivals of any size."""
    logits = logits_of(1, 2, "normal")
    logits[0, 5] = 3e38
    group = group_of(count=2, drafts=[0], temperature=temperature, logit_bias={7: 1e300, 5: -1e300}, **filters)
    assert choose(logits, [group], NoiseCache()).of(group) == [7, 7]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 300}, {"top_p": 0.9}, {"min_p": 0.1}])
@pytest.mark.parametrize("fill", [-math.inf, math.nan])
def test_a_hopeless_row_still_yields_a_token(temperature, filters, fill):
    """All masked, or broken: no crash, which would take everybody's round down, and the neighbours stand."""
    logits = logits_of(2, 2, "normal", 1000)
    logits[0] = fill
    bad = group_of(temperature=temperature, **filters)
    good = group_of(start=1, temperature=temperature, **filters)
    choices = choose(logits, [bad, good], NoiseCache())
    assert 0 <= choices.of(bad)[0] < 1000
    alone = group_of(temperature=temperature, **filters)
    assert choices.of(good) == choose(logits[1:].clone(), [alone], NoiseCache()).of(alone)


def test_rows_that_need_no_edit_are_not_copied():
    logits = logits_of(3, 2, "normal")
    before, pointer = logits.clone(), logits.data_ptr()
    choose(logits, [group_of(), group_of(start=1, temperature=0.0)], NoiseCache())
    assert logits.data_ptr() == pointer
    assert torch.equal(logits, before)
    assert logits.shape == (2, VOCAB)
