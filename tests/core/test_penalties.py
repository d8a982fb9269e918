"""Penalties, bias and masks against the oracle, row by row, with the drafts before each row counted."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.penalties import RowGroup, edit_logits, edits
from core.provenance import Provenance
from core.sampling_params import SamplingParams
from core.sequence import CommittedToken, GenerationRequest, Sequence
from core.verifiers.params import StrictParams
from tests.core import sampling_oracle as oracle
from tests.core.sampling_cases import VOCAB, drafts_lists, logits_of, make_sequence, sampling_params


def edited(logits, group):
    logits = logits.clone()
    edit_logits(logits, group)
    return logits


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_equals_the_oracle(data):
    sequence = data.draw(make_sequence(sampling_params()))
    drafts = data.draw(drafts_lists)
    count = data.draw(st.integers(1, len(drafts) + 1))
    logits = logits_of(
        data.draw(st.integers(0, 1000)), len(drafts) + 1 + 3, data.draw(st.sampled_from(["normal", "ties"]))
    )
    group = RowGroup(sequence, 2, drafts, count)
    got = edited(logits, group)
    first = len(drafts) + 1 - count
    for row in range(count):
        want = oracle.edited(logits[2 + row].tolist(), sequence, drafts[: first + row])
        assert got[2 + row].tolist() == want
    others = [0, 1, *range(2 + count, len(logits))]
    assert torch.equal(got[others], logits[others])
    assert edits(group) or torch.equal(got, logits)


def sequence_of(prompt=(1, 2), output=(), end_token_ids=frozenset(), **sampling):
    request = GenerationRequest(
        "r", tuple(prompt), 100, SamplingParams(**sampling), StrictParams(), end_token_ids=end_token_ids
    )
    sequence = Sequence(request)
    for token in output:
        sequence.tokens.append(token)
        sequence.output_counts[token] += 1
    return sequence


def test_a_draft_counts_in_the_rows_behind_it_only():
    sequence = sequence_of(output=[5], frequency_penalty=1.0, presence_penalty=0.25)
    got = edited(torch.zeros(4, 10), RowGroup(sequence, 0, [5, 6, 6], 4))
    assert got[:, 5].tolist() == [-1.25, -2.25, -2.25, -2.25]
    assert got[:, 6].tolist() == [0.0, 0.0, -1.25, -2.25]


def test_repetition_counts_the_prompt_presence_and_frequency_do_not():
    repetition = edited(torch.full((1, 4), 3.0), RowGroup(sequence_of(repetition_penalty=1.5), 0, [], 1))
    presence = edited(
        torch.full((1, 4), 3.0), RowGroup(sequence_of(presence_penalty=1.0, frequency_penalty=1.0), 0, [], 1)
    )
    assert repetition.tolist() == [[3.0, 2.0, 2.0, 3.0]]
    assert presence.tolist() == [[3.0, 3.0, 3.0, 3.0]]


def test_rejected_drafts_leave_no_trace():
    sequence = sequence_of(
        output=[3], repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.5, min_tokens=4
    )
    before = edited(logits_of(1, 1, "normal"), RowGroup(sequence, 0, [], 1))
    edited(logits_of(2, 4, "normal"), RowGroup(sequence, 0, [7, 8, 9], 4))
    assert torch.equal(edited(logits_of(1, 1, "normal"), RowGroup(sequence, 0, [], 1)), before)
    assert sequence.output_counts == {3: 1}


def test_end_tokens_are_masked_until_min_tokens_are_out():
    sequence = sequence_of(output=[5], end_token_ids=frozenset({0, 9}), min_tokens=3, logit_bias={9: 50.0})
    got = edited(torch.zeros(4, 10), RowGroup(sequence, 0, [5, 5, 5], 4))
    assert (got == -math.inf).nonzero().tolist() == [[0, 0], [0, 9], [1, 0], [1, 9]]
    assert got[2, 9] == 50.0


def test_a_draft_models_row_follows_all_drafts_so_far():
    sequence = sequence_of(frequency_penalty=1.0)
    group = RowGroup(sequence, 0, [4, 4], 1)
    assert edited(torch.zeros(1, 10), group)[0, 4] == -2.0
    assert list(group.positions) == [4]


def test_ids_beyond_a_smaller_vocabulary_are_ignored():
    sequence = sequence_of(
        prompt=(1, 40),
        output=[50],
        end_token_ids=frozenset({60}),
        min_tokens=5,
        repetition_penalty=2.0,
        frequency_penalty=1.0,
        logit_bias={70: 1.0},
    )
    got = edited(torch.ones(2, 10), RowGroup(sequence, 0, [80], 2))
    assert got.tolist() == [[1.0, 0.5] + [1.0] * 8] * 2


@pytest.mark.parametrize("bias", [1e39, 3e38, -1e39, -math.inf, -1e300])
def test_extreme_biases_make_no_nan_and_no_positive_infinity(bias):
    logits = torch.full((1, VOCAB), 3e38)
    got = edited(logits, RowGroup(sequence_of(logit_bias={1: bias}, repetition_penalty=1e-30), 0, [], 1))
    assert not got.isnan().any()
    assert got[0, 1] < math.inf


def test_rows_must_end_the_block():
    with pytest.raises(ValueError, match="3 rows"):
        RowGroup(sequence_of(), 0, [1], 3)
    with pytest.raises(ValueError, match="0 rows"):
        RowGroup(sequence_of(), 0, [1], 0)


def test_a_token_of_prompt_output_and_drafts_is_penalised_once():
    sequence = sequence_of(
        prompt=(1, 2, 3), output=[2, 3, 3, 5], repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=0.5
    )
    got = edited(torch.full((3, 8), 4.0), RowGroup(sequence, 0, [3, 1], 3))
    # id:            prompt 1, prompt + output 2, all three 3, never 4, output 5
    assert got[0, 1:6].tolist() == [2.0, 1.25, 1.0, 4.0, 1.25]
    assert got[1, 1:6].tolist() == [2.0, 1.25, 0.75, 4.0, 1.25]
    assert got[2, 1:6].tolist() == [1.25, 1.25, 0.75, 4.0, 1.25]


def test_the_kept_counts_follow_the_output():
    sequence = sequence_of(output=[5], frequency_penalty=1.0)
    group = RowGroup(sequence, 0, [], 1)
    assert edited(torch.zeros(1, 8), group)[0, 5] == -1.0
    sequence.commit([CommittedToken(5, Provenance.TARGET), CommittedToken(6, Provenance.TARGET)])
    assert edited(torch.zeros(1, 8), group)[0, 5:7].tolist() == [-2.0, -1.0]


def test_a_long_prompt_costs_no_python_per_token_and_step(monkeypatch):
    """The prompt's ids become a tensor once, not once a step."""
    sequence = sequence_of(prompt=range(6000), repetition_penalty=1.2)
    lengths = []
    real = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda data, **options: lengths.append(len(data)) or real(data, **options))
    for drafts in ([], [7], [7, 9]):
        edit_logits(torch.zeros(1, 7000), RowGroup(sequence, 0, drafts, 1))
    assert [length for length in lengths if length > 3] == [6000]
