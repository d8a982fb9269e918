"""Target and draft on other devices than the CPU, simulated: the same tokens, no mixed tensors, one wait a round."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from transformers import PreTrainedModel

from core import race
from core.device_copy import to_device
from core.evidence import VerifyBlock, gather_evidence
from core.grammar import Grammar
from core.layout import RaggedLayout, Segment
from core.models.attention_flash import prepare_flash
from core.models.kv_cache import BlockPool
from core.models.runner import ModelRunner
from core.noise import NoiseCache
from core.penalties import edit_logits
from core.prompt_logprobs import score_prompt
from core.provenance import Provenance
from core.runtime import Runtime
from core.sampling import RowGroup, choose
from core.sequence import CommittedToken, Sequence
from core.verifiers.params import FlyParams, HybridParams
from tests.core.sampling_cases import VOCAB
from tests.core.test_evidence import batches, check_block, told, verdict
from tests.core.test_exactness import Comparison, draft_model, request_for, target_model
from tests.simulated_device import DEVICE, Remote, SimulatedDevice, moved
from tests.tiny import EOS, Driver, loaded, make_request, outputs

SIZE, BLOCKS = 16, 400
EVERYTHING = ("greedy-penalties", "t1.3-free", "t0.7-everything")  # of SAMPLING: every edit, filter and kind of race


def runner_on(model: PreTrainedModel, name: str, remote: bool) -> ModelRunner:
    if not remote:
        return ModelRunner(loaded(model, name), BLOCKS, SIZE)
    return ModelRunner(loaded(moved(copy.deepcopy(model)), name, device=DEVICE), BLOCKS, SIZE)


def runtime_on(target: bool, draft: bool) -> Runtime:
    """True: on the simulated device."""
    return Runtime(
        target=runner_on(target_model(), "target", target),
        draft=runner_on(draft_model("noisy"), "draft", draft),
        pool=BlockPool(BLOCKS, SIZE),
        control_ids=frozenset({0, 1, EOS}),
    )


@settings(deadline=None, max_examples=30)
@given(batches(), st.sampled_from([race.SCORES_AT_ONCE, 3 * VOCAB, 1]))
def test_evidence_of_a_device_is_the_cpus_and_waits_once(batch, scores_at_once: int) -> None:
    blocks, logits, control_ids = batch
    with SimulatedDevice() as device, pytest.MonkeyPatch.context() as patch:
        patch.setattr(race, "SCORES_AT_ONCE", scores_at_once)
        got = gather_evidence(Remote(logits.clone()), blocks, control_ids, NoiseCache())
    assert device.waits == ["tolist"]
    for evidence, block in zip(got, blocks, strict=True):
        check_block(evidence, block, logits, control_ids)
    sparing = gather_evidence(logits.clone(), blocks, control_ids, NoiseCache())
    for evidence, other, block in zip(got, sparing, blocks, strict=True):
        assert verdict(evidence, block) == verdict(other, block)
        assert told(evidence) == told(other)


FILTERS = [
    {},
    {"top_k": 7},
    {"top_p": 0.8},
    {"top_k": 30, "top_p": 0.7},
    {"min_p": 0.05},
    {"top_p": 0.3, "min_p": 0.01},
]


def filtered_groups(count: int) -> list[RowGroup]:
    """One row for each of so many sequences, no two of one kind side by side."""
    requests = [make_request([1, 2], temperature=1.0, seed=n, **FILTERS[n % len(FILTERS)]) for n in range(count)]
    return [RowGroup(Sequence(request), row, [], 1) for row, request in enumerate(requests)]


def test_sampling_costs_a_device_no_more_calls_for_more_sequences() -> None:
    calls = []
    for count in (6, 60):
        with SimulatedDevice() as device:
            choose(Remote(torch.randn(count, 300)), filtered_groups(count), NoiseCache())
            calls.append(device.calls)
    assert calls[0] == calls[1] < 300


def test_sampling_works_on_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(60, 300, generator=torch.Generator().manual_seed(2))
    want = choose(logits.clone(), filtered_groups(60), NoiseCache()).tokens
    monkeypatch.setattr(race, "SCORES_AT_ONCE", 4 * 300)
    with SimulatedDevice() as device:
        remote = Remote(logits.clone())
        got = choose(remote, filtered_groups(60), NoiseCache()).tokens
    assert torch.equal(got.local, want)  # type: ignore[attr-defined]
    assert device.largest == 4 * 300
    assert device.waits == []


def test_grammars_mask_a_device_without_waiting_for_it() -> None:
    bytes_only = LLTokenizer("byte")

    def choices(logits: torch.Tensor) -> list[int]:
        def matcher() -> LLMatcher:
            return LLMatcher(bytes_only, LLMatcher.grammar_from_regex("[a-f]{9}"))

        grammar = Grammar(matcher(), matcher, bytes_only.eos_token, (), ())
        sequence = Sequence(make_request([5]), grammar=grammar)
        block = VerifyBlock(sequence, 0, list(b"abc"))
        return gather_evidence(logits, [block], frozenset(), NoiseCache())[0].choice

    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(3))
    plain = choices(logits.clone())
    assert set(plain) <= set(b"abcdef")
    with SimulatedDevice() as device:
        assert choices(Remote(logits.clone())) == plain
    assert device.waits == ["tolist"]


@pytest.mark.parametrize(("target", "draft", "drafter"), [(True, False, "multilevel"), (False, True, "model")])
def test_strict_equals_off_wherever_the_models_are(target: bool, draft: bool, drafter: str) -> None:
    with SimulatedDevice():
        runtime = runtime_on(target, draft)
        requests = [request_for(name, drafter=drafter, num_draft_tokens=4) for name in EVERYTHING]
        comparison = Comparison(runtime)
        for request, got in zip(requests, outputs(runtime, requests), strict=True):
            comparison.check(request, got)
    assert comparison.excuses <= 1


def test_a_loose_answer_does_not_depend_on_the_devices() -> None:
    verifier = HybridParams(entropy_threshold=0.05, window=2)
    request = request_for("t1.3-free", drafter="multilevel", num_draft_tokens=8, verifier=verifier, max_tokens=30)

    def run(target: bool, draft: bool) -> tuple[list[int], int]:
        [sequence] = Driver(runtime_on(target, draft)).run([request])
        return sequence.output, sequence.counters.loosened.total()

    plain = run(False, False)
    with SimulatedDevice():
        assert run(True, False) == run(True, True) == plain


def test_a_forward_never_waits_for_its_device_and_computes_what_the_cpu_does() -> None:
    segments = [Segment((4,) * 45, 0, (9, 3, 8), 45), Segment((8,), 0, (5,), 1)]
    again = [Segment((5, 6, 7), 45, (9, 3, 8), 3), Segment((7,) * 40, 1, (5, 1, 2), 2)]
    no_logits = [Segment((3, 4), 0, (0,), 0)]
    layouts = [RaggedLayout.build(given, SIZE) for given in (segments, again, no_logits)]
    plain = runner_on(target_model(), "target", False)
    with SimulatedDevice() as device:
        runner = runner_on(target_model(), "target", True)
        device.waits.clear()
        logits = [runner.forward(layout) for layout in layouts]
        assert device.waits == []
    for got, layout in zip(logits, layouts, strict=True):
        assert isinstance(got, Remote)
        torch.testing.assert_close(got.local, plain.forward(layout), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("verifier", [None, FlyParams(window=1)])
@pytest.mark.parametrize(("drafter", "waits"), [("prompt_lookup", 1), ("model", 5)])
def test_a_round_waits_once_for_the_target_and_once_for_each_draft(
    drafter: str, waits: int, verifier: FlyParams | None
) -> None:
    options = {"drafter": drafter, "num_draft_tokens": 4, "verifier": verifier, "ignore_eos": True, "logprobs": 2}
    rounds: list[list[str]] = []
    with SimulatedDevice() as device:
        driver = Driver(runtime_on(True, True), prefill_chunk=64)
        driver.on_round = lambda: (rounds.append(list(device.waits)), device.waits.clear())[1]
        driver.run([request_for(name, max_tokens=20, **options) for name in EVERYTHING])
    drafting = [sum(item.drafted for item in result.items) > 0 for result in driver.rounds]
    assert rounds[drafting.index(True)] == ["tolist"] * waits


def test_the_simulated_device_notices_what_it_should() -> None:
    with SimulatedDevice() as device:
        there = torch.zeros(3, 4, device=DEVICE)
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.zeros(4)
        with pytest.raises(RuntimeError, match="same device"):
            there[torch.tensor([0])]
        assert device.waits == []
        there[0] = 1.0
        assert float(there.sum()) == 4.0
        there[there > 0]
        there.cpu()
        torch.zeros(2).to(DEVICE)
        assert device.waits == ["aten::_local_scalar_dense", "aten::index.Tensor", "aten::_to_copy", "aten::_to_copy"]
        device.waits.clear()
        to_device([1, 2], torch.int64, DEVICE)
        assert device.waits == []
        torch.zeros(2).to(DEVICE, non_blocking=True)  # from pageable memory
        assert device.waits == ["aten::_to_copy"]
        before = device.calls
        there.sum(-1)
        assert device.calls == before + 1
        assert device.largest == 12


def test_flash_indices_reach_the_device_in_one_copy_that_nobody_waits_for() -> None:
    layout = RaggedLayout.build([Segment((0,), 300, (7, 2), 1), Segment((0, 0, 0), 6, (5,), 3)], 256)
    with SimulatedDevice() as device:
        flash = prepare_flash(layout, torch.bfloat16, DEVICE, lambda query, *_, **__: query)
        assert device.copies == ["aten::_to_copy"]
        assert device.waits == []
        assert {index.device for index in (flash.row_starts, flash.key_starts, flash.table)} == {DEVICE}
        assert flash.table.tolist() == [[7, 2], [5, 0]]


def test_what_penalties_look_at_reaches_a_device_once_for_all_steps_of_a_round() -> None:
    sequence = Sequence(make_request(range(50), repetition_penalty=1.3, frequency_penalty=0.2))
    sequence.commit([CommittedToken(7, Provenance.TARGET), CommittedToken(60, Provenance.TARGET)])
    groups = [RowGroup(sequence, 0, [4, 99][:step], 1) for step in range(3)] + [RowGroup(sequence, 0, [4, 99], 3)]
    with SimulatedDevice() as device:
        for group in groups:
            plain = torch.randn(group.count, 100, generator=torch.Generator().manual_seed(1))
            remote = Remote(plain.clone())
            edit_logits(remote, group)
            edit_logits(plain, group)
            assert torch.equal(remote.local, plain)
        assert len(device.copies) == 2 + 3  # prompt, output; the drafts of three groups that have some
        assert device.waits == []


def test_a_long_prompts_log_probabilities_come_in_one_copy() -> None:
    request = replace(make_request(range(150)), prompt_logprobs=2)
    rows = torch.randn(149, 200, generator=torch.Generator().manual_seed(1))
    there, here = Sequence(request), Sequence(request)
    with SimulatedDevice() as device:
        score_prompt(there, Remote(rows.clone()), range(149))
    assert device.waits == ["tolist"]
    score_prompt(here, rows, range(149))
    for got, want in zip(there.prompt_logprobs, here.prompt_logprobs, strict=True):
        assert got.logprob == pytest.approx(want.logprob, abs=1e-5)
        assert [token for token, _ in got.top] == [token for token, _ in want.top]
