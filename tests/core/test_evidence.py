"""Evidence against the oracle, every reason for protection, and raw log-probabilities."""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from core import evidence as evidence_module
from core import logprobs as logprobs_module
from core import sampling as sampling_module
from core.correction_table import MemorySnapshot, pair_key
from core.evidence import VerifyBlock, gather_evidence
from core.noise import NoiseCache
from core.sampling_params import SamplingParams
from core.sequence import GenerationRequest, Sequence
from core.verifiers.params import (
    CsdParams,
    FlyParams,
    HybridParams,
    LossyParams,
    OffParams,
    StrictParams,
    TypicalParams,
)
from core.verifiers.registry import loosen, resolve_block
from tests.core import sampling_oracle as oracle
from tests.core.sampling_cases import VOCAB, kinds, logits_of, make_sequence, sampling_params, tokens
from tests.core.test_filters import decided

VERIFIERS = st.sampled_from(
    [
        OffParams(),
        StrictParams(),
        FlyParams(window=0),
        FlyParams(window=1),
        FlyParams(window=0, entropy="full"),
        CsdParams(ratio=0.01),
        HybridParams(window=1),
        LossyParams(),
        TypicalParams(),
    ]
)
GATES = ("lossy", "typical")  # that know nothing of a row before it is judged
LOOSE = ("fly", "csd", "hybrid", *GATES)
HALF_KNOWN = MemorySnapshot(
    recent={pair_key(d, c): 6 for d, c in itertools.product(range(VOCAB), repeat=2) if (31 * d + 17 * c) % 2}
)


@st.composite
def batches(draw):
    blocks, row = [], 0
    for _ in range(draw(st.integers(1, 3))):
        drafts = draw(st.lists(tokens, max_size=4))
        sequence = draw(make_sequence(sampling_params(), VERIFIERS, st.sampled_from([0, 0, 3, 8])))
        memory = draw(st.sampled_from([MemorySnapshot(), HALF_KNOWN]))
        blocks.append(VerifyBlock(sequence, row, drafts, memory, learns=draw(st.booleans())))
        row += len(drafts) + 1
    logits = logits_of(draw(st.integers(0, 100000)), row, draw(kinds))
    for block in blocks:  # half of the drafts near the top, or none would ever be native or survive
        for index, draft in enumerate(block.drafts):
            if draw(st.booleans()):
                logits[block.first_row + index, draft] = logits[block.first_row + index].max() + draw(
                    st.sampled_from([-0.5, 0.0, 3.0])
                )
    return blocks, logits, draw(st.frozensets(tokens, max_size=3))


def same(got, want, tolerance=2e-6):
    return (math.isnan(got) and math.isnan(want)) or got == want or abs(got - want) <= tolerance


def mismatches(native, verifier, may_loosen):
    """Those of a loose request up to the first that cannot be loosened. may_loosen: whether memory knows pair j."""
    found = []
    for index, same in enumerate(native):
        if same or verifier.type not in LOOSE:
            continue
        window = getattr(verifier, "window", None)
        clean = window is not None and native[index + 1 : index + 1 + window] == [True] * window
        if not clean and verifier.type not in GATES and (verifier.type == "fly" or not may_loosen(index)):
            break
        found.append(index)
    return found


def check_block(got, block, logits, control_ids):
    """Compare one block's evidence with the oracle's, row by row."""
    sequence, request = block.sequence, block.sequence.request
    params, verifier = request.sampling, request.verifier
    judged = mismatches(got.native, verifier, lambda j: block.memory.count(got.draft[j], got.choice[j]) >= 6)
    learned = set(range(len(got.native))) - {i for i, native in enumerate(got.native) if native} - set(judged)
    learns = block.learns and verifier.type in ("csd", "hybrid") and learned
    assert got.learned == (min(learned) if learns else None)
    assert got.draft == block.drafts
    assert len(got.choice) == len(block.drafts) + 1
    assert (got.logprobs is None) == (params.logprobs is None)
    for index in range(len(block.drafts) + 1):
        raw = logits[block.first_row + index].tolist()
        row = oracle.edited(raw, sequence, block.drafts[:index])
        temperature = params.temperature or 1.0
        assume(decided(row, params, temperature))
        choice = oracle.pick(row, params, len(sequence.tokens) + index)
        assert got.choice[index] == choice
        draft = block.drafts[index] if index < len(block.drafts) else None
        if got.logprobs is not None:
            check_logprobs(got.logprobs[index], raw, draft, choice, params.logprobs)
        if draft is None:
            continue
        seen = got.verdict(index)
        assert (seen.draft, seen.choice) == (draft, choice)
        assert seen.gap is None or index in judged
        assert got.native[index] == (draft == choice)
        if index not in judged and index != got.learned:
            assert math.isnan(got.entropy[index])
            assert math.isnan(got.probability[index])
            assert math.isnan(got.gap[index])
            assert got.protected[index]
            continue
        assert got.gap[index] == row[draft] - max(row)
        if verifier.type in ("fly", "hybrid"):
            assert same(got.entropy[index], oracle.entropy(row, params, verifier.entropy))
        elif verifier.type == "typical":
            assert same(got.entropy[index], oracle.entropy(row, params, "nats"))
            assert same(got.probability[index], oracle.probabilities(row, params).get(draft, 0.0))
        else:
            assert math.isnan(got.entropy[index])
        untouchable = request.end_token_ids | control_ids
        assert got.protected[index] == (
            draft in untouchable
            or choice in untouchable
            or row[draft] == -math.inf
            or draft not in oracle.survivors(row, params, temperature)
            or params.logit_bias.get(draft, 0) < 0
            or sequence.output_len + index < request.strict_prefix
        )


def check_logprobs(got, raw, draft, choice, count):
    logprobs = oracle.log_softmax(raw)
    assert (got.draft is None) == (draft is None)
    assert draft is None or same(got.draft, logprobs[draft], 1e-5)
    assert same(got.choice, logprobs[choice], 1e-5)
    ranked = sorted(range(len(raw)), key=lambda v: (-raw[v], v))[:count]
    assert [token for token, _ in got.top] == ranked
    assert all(same(value, logprobs[token], 1e-5) for token, value in got.top)


@settings(deadline=None, max_examples=200)
@given(batches())
def test_equals_the_oracle(batch):
    blocks, logits, control_ids = batch
    got = gather_evidence(logits.clone(), blocks, control_ids, NoiseCache())
    for evidence, block in zip(got, blocks, strict=True):
        check_block(evidence, block, logits, control_ids)


@settings(deadline=None, max_examples=100)
@given(batches())
def test_judging_all_rows_together_gives_the_same(batch):
    """The path CUDA takes, on the CPU."""
    blocks, logits, control_ids = batch
    with pytest.MonkeyPatch.context() as patch:
        for module in (evidence_module, logprobs_module, sampling_module):
            patch.setattr(module, "prunes", lambda logits: False)
        got = gather_evidence(logits.clone(), blocks, control_ids, NoiseCache())
    for evidence, block in zip(got, blocks, strict=True):
        check_block(evidence, block, logits, control_ids)
    sparing = gather_evidence(logits.clone(), blocks, control_ids, NoiseCache())
    for evidence, other, block in zip(got, sparing, blocks, strict=True):
        assert verdict(evidence, block) == verdict(other, block)
        assert told(evidence) == told(other)


def told(evidence):
    """Which figures a client is told of each row; their last bits may differ between the two ways."""
    return [
        [value is not None for value in (verdict.entropy, verdict.gap)]
        for verdict in map(evidence.verdict, range(len(evidence.draft)))
    ]


def verdict(evidence, block):
    return resolve_block(evidence, loosen(evidence, block.sequence.request.verifier, block.memory))


def test_nothing_is_judged_behind_a_mismatch_that_is_certainly_rejected(monkeypatch):
    """K = 5, no draft native: fly with W = 1 can loosen none, hybrid those that the memory knows."""
    rows = []
    real = evidence_module.judge
    monkeypatch.setattr(evidence_module, "judge", lambda *given: rows.append(given[0]) or real(*given))
    logits, drafts = logits_of(0, 6, "normal"), [1, 2, 3, 4, 5]
    choice = logits.argmax(-1).tolist()
    memory = MemorySnapshot(recent={pair_key(1, choice[0]): 9, pair_key(2, choice[1]): 9, pair_key(4, choice[3]): 9})
    cases = ((FlyParams(window=1), 0), (HybridParams(window=1), 2), (LossyParams(), 5), (TypicalParams(), 5))
    for verifier, expected in cases:
        rows.clear()
        block = VerifyBlock(sequence_of(verifier=verifier), 0, drafts, memory)
        gather_evidence(logits.clone(), [block], frozenset(), NoiseCache())
        assert len(rows) == expected


@settings(deadline=None, max_examples=60)
@given(batches())
def test_a_block_alone_has_the_same_evidence_to_the_bit(batch):
    blocks, logits, control_ids = batch
    together = gather_evidence(logits.clone(), blocks, control_ids, NoiseCache())
    for evidence, block in zip(together, blocks, strict=True):
        rows = logits[block.first_row : block.first_row + len(block.drafts) + 1].clone()
        [alone] = gather_evidence(rows, [dataclasses.replace(block, first_row=0)], control_ids, NoiseCache())
        assert repr(alone) == repr(evidence)  # repr, since NaN equals nothing


def test_judging_changes_no_choice():
    """A loose request takes the tokens that a strict one takes."""
    logits = logits_of(0, 6, "normal")
    strict, fly = (
        gather_evidence(
            logits.clone(), [VerifyBlock(sequence_of(verifier=v), 0, [1, 2, 3, 4, 5])], frozenset(), NoiseCache()
        )
        for v in (StrictParams(), FlyParams(window=0))
    )
    assert strict[0].choice == fly[0].choice


def sequence_of(verifier=None, output=(), strict_prefix=0, end_token_ids=frozenset(), **params):
    params = {"temperature": 0.0, **params}
    request = GenerationRequest(
        "r",
        (1, 2),
        100,
        SamplingParams(**params),
        verifier or HybridParams(window=0),  # every mismatch may be loosened, so that all are judged
        strict_prefix=strict_prefix,
        end_token_ids=end_token_ids,
    )
    sequence = Sequence(request)
    sequence.tokens.extend(output)
    return sequence


def evidence_of(sequence, drafts=(3, 3), control_ids=frozenset(), rows=None):
    """Rows whose best tokens are 4 (logit 5), 3 (4.5), 6 (1), and 0 elsewhere."""
    if rows is None:
        rows = torch.zeros(len(drafts) + 1, 10)
        rows[:, 4], rows[:, 3], rows[:, 6] = 5.0, 4.5, 1.0
    [got] = gather_evidence(rows, [VerifyBlock(sequence, 0, list(drafts))], control_ids, NoiseCache())
    return got


def test_nothing_is_protected_without_a_reason():
    got = evidence_of(sequence_of())
    assert got.protected == [False, False]
    assert got.gap == [-0.5, -0.5]
    assert got.choice == [4, 4, 4]


def test_end_tokens_are_protected_as_draft_and_as_choice():
    assert evidence_of(sequence_of(end_token_ids=frozenset({3}))).protected == [True, True]
    assert evidence_of(sequence_of(end_token_ids=frozenset({4}))).protected == [True, True]
    assert evidence_of(sequence_of(end_token_ids=frozenset({6}))).protected == [False, False]


def test_control_tokens_are_protected_as_draft_and_as_choice():
    assert evidence_of(sequence_of(), control_ids=frozenset({3})).protected == [True, True]
    assert evidence_of(sequence_of(), control_ids=frozenset({4})).protected == [True, True]


def test_masked_drafts_are_protected():
    got = evidence_of(sequence_of(min_tokens=1, end_token_ids=frozenset({6})), drafts=(6, 3))
    assert got.gap[0] == -math.inf
    assert got.protected == [True, False]
    rows = torch.zeros(2, 10)
    rows[:, 3] = -math.inf
    assert evidence_of(sequence_of(), drafts=(3,), rows=rows).protected == [True]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", [{"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.3}])
def test_filtered_out_drafts_are_protected_even_when_greedy(temperature, filters):
    """Token 6 has 0.011 of the mass, token 3 0.37; with token 4 it makes 0.98."""
    got = evidence_of(sequence_of(temperature=temperature, seed=3, **filters), drafts=(6, 6, 6))
    assert got.protected == [True, True, True]
    near = evidence_of(sequence_of(temperature=temperature, seed=3, **filters), drafts=(3, 3, 3))
    assert near.protected == near.native


def test_greedy_filters_are_judged_at_temperature_one():
    got = evidence_of(sequence_of(min_p=0.6), drafts=(3,))  # exp(-0.5) = 0.607
    assert got.protected == [False]
    assert evidence_of(sequence_of(min_p=0.61), drafts=(3,)).protected == [True]


def test_drafts_with_a_negative_bias_are_protected():
    assert evidence_of(sequence_of(logit_bias={3: -0.1})).protected == [True, True]
    assert evidence_of(sequence_of(logit_bias={3: 0.1, 4: -0.1})).protected == [False, False]


def test_the_strict_prefix_is_protected_by_output_position():
    got = evidence_of(sequence_of(output=[7], strict_prefix=3), drafts=(3, 3, 3))
    assert got.protected == [True, True, False]  # output positions 1, 2, 3


@pytest.mark.parametrize("draft", [10, 500])
def test_a_draft_the_vocabulary_lacks_is_protected_and_harmless(draft):
    got = evidence_of(sequence_of(logprobs=1, repetition_penalty=1.2), drafts=(draft, 3))
    assert got.native == [False, False]
    assert got.protected == [True, False]
    assert got.logprobs[0].draft is None


def test_gap_counts_penalties_and_bias_but_not_temperature():
    got = evidence_of(sequence_of(temperature=0.25, top_k=1, logit_bias={3: -1.0}), drafts=(3,))
    assert got.gap == [-1.5]


def test_entropy_is_of_the_three_likeliest_not_renormalised():
    rows = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]]).log()
    want = -sum(p * math.log(p) for p in (0.4, 0.3, 0.2))
    got = evidence_of(sequence_of(FlyParams(window=0)), drafts=(2,), rows=rows.clone())
    assert got.entropy == [pytest.approx(want, abs=1e-6)]
    full = evidence_of(sequence_of(FlyParams(window=0, entropy="full")), drafts=(2,), rows=rows.clone())
    assert full.entropy == [pytest.approx((want - 0.1 * math.log(0.1)) / math.log(4), abs=1e-6)]
    processed = evidence_of(
        sequence_of(FlyParams(window=0), temperature=1.0, top_k=2, logit_bias={0: 99.0}), (1,), rows=rows
    )
    assert processed.entropy == [pytest.approx(0.0, abs=1e-6)]


def test_typical_sees_the_drafts_probability_and_the_whole_rows_entropy():
    """Greedy: of the softmax. Sampled: of what temperature and filters leave, here tokens 0 and 1 as 16 to 9."""
    rows = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]]).log()
    greedy = evidence_of(sequence_of(TypicalParams()), drafts=(2,), rows=rows.clone())
    assert greedy.probability == [pytest.approx(0.2, abs=1e-6)]
    want = -sum(p * math.log(p) for p in (0.4, 0.3, 0.2, 0.1))
    assert greedy.entropy == [pytest.approx(want, abs=1e-6)]
    loser = sequence_of(TypicalParams(), temperature=0.5, top_k=2, seed=next(s for s in range(99) if picks(s) == 0))
    sampled = evidence_of(loser, drafts=(1,), rows=rows.clone())
    assert sampled.probability == [pytest.approx(9 / 25, abs=1e-6)]
    assert sampled.entropy == [pytest.approx(-(0.36 * math.log(0.36) + 0.64 * math.log(0.64)), abs=1e-6)]
    assert sampled.protected == [False]
    lost = evidence_of(sequence_of(TypicalParams()), drafts=(7,), rows=rows.clone())
    assert (lost.probability, lost.protected) == ([0.0], [True])


def picks(seed):
    """What the sampled request above draws with this seed."""
    rows = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]]).log()
    return evidence_of(sequence_of(temperature=0.5, top_k=2, seed=seed), drafts=(1,), rows=rows).choice[0]


def test_three_equal_tokens_reach_the_largest_entropy():
    rows = torch.full((2, VOCAB), -60.0)
    rows[:, :3] = 0.0
    assert evidence_of(sequence_of(FlyParams(window=0)), drafts=(1,), rows=rows).entropy == [
        pytest.approx(math.log(3), abs=1e-6)
    ]


def test_blocks_without_drafts_have_a_choice_only():
    got = evidence_of(sequence_of(logprobs=0), drafts=())
    assert (got.draft, got.choice, got.native) == ([], [4], [])
    assert got.entropy == got.probability == got.gap == got.protected == []
    assert got.logprobs[0].draft is None
    assert got.logprobs[0].top == ()


def test_logprobs_are_raw_whatever_edits_the_row():
    plain = evidence_of(sequence_of(logprobs=3))
    edited = evidence_of(sequence_of(logprobs=3, repetition_penalty=2.0, logit_bias={4: -9.0, 0: 2.0}, temperature=0.2))
    assert [row.draft for row in edited.logprobs] == [row.draft for row in plain.logprobs]
    assert [row.top for row in edited.logprobs] == [row.top for row in plain.logprobs]
    assert edited.choice != plain.choice
    assert edited.logprobs[0].choice == edited.logprobs[0].draft


def test_a_broken_row_is_no_licence():
    rows = torch.zeros(3, 10)
    rows[0] = math.nan
    got = evidence_of(sequence_of(), drafts=(3, 3), rows=rows)
    assert got.protected[0]
    assert not got.protected[1]


def test_evidence_of_many_rows_needs_no_judging_for_strict_requests():
    got = evidence_of(sequence_of(StrictParams()))
    assert all(math.isnan(x) for x in got.entropy + got.gap)
    assert got.protected == [True, True]
    assert got.native == [False, False]
