"""Whole rounds against the slow obvious decoder, and the pitfalls that bit real engines."""

import dataclasses
import functools

import pytest
import torch
from transformers import PreTrainedModel

from core.correction_memory import CorrectionMemory
from core.provenance import FinishReason, Provenance
from core.round import CatchUp, RoundPlan, run_round
from core.runtime import Runtime
from core.sequence import CommittedToken, GenerationRequest, Sequence
from core.verifiers.params import (
    CsdParams,
    FlyParams,
    HybridParams,
    LossyParams,
    OffParams,
    StrictParams,
    TypicalParams,
    VerifierParams,
)
from tests.naive import Pairs, decode, plain_logits
from tests.tiny import EOS, VOCAB, Driver, make_request, make_runtime, noisy_copy, outputs, random_model, random_prompt

K = 7
PROMPT = random_prompt(21, seed=4)


@functools.cache
def target_model() -> PreTrainedModel:
    return random_model(1)


@functools.cache
def draft_model() -> PreTrainedModel:
    return noisy_copy(target_model(), scale=0.04)


def runtime_with(pairs: Pairs | None = None) -> Runtime:
    runtime = make_runtime(target_model(), draft_model())
    runtime.memory = seeded_memory(pairs or {})
    return runtime


def seeded_memory(pairs: Pairs) -> CorrectionMemory:
    memory = CorrectionMemory("target", "draft")
    for (draft, choice), count in pairs.items():
        for _ in range(count):
            memory.record("model", draft, choice)
    memory.observe("model", samples=1, tokens=1000)
    memory.merge_round()
    return memory


@functools.cache
def some_pairs() -> Pairs:
    """A memory that knows about half of all pairs often enough for lambda = 3."""
    return {(d, c): 1 + (31 * d + 17 * c) % 4 for d in range(VOCAB) for c in range(VOCAB)}


VERIFIERS: dict[str, VerifierParams] = {
    "strict": StrictParams(),
    "fly": FlyParams(entropy_threshold=0.3, window=2),
    "fly-wide": FlyParams(entropy_threshold=0.0, window=0),
    "csd": CsdParams(frequency_threshold=3, ratio=0.01),
    "hybrid": HybridParams(entropy_threshold=0.3, window=3, frequency_threshold=3, ratio=0.05),
    "hybrid-rescued": HybridParams(
        entropy_threshold=0.3, window=3, frequency_threshold=3, ratio=0.05, agreement="rescued"
    ),
    "hybrid-undecided": HybridParams(
        entropy_threshold=0.3, window=3, frequency_threshold=3, ratio=0.05, rescue_entropy=0.5
    ),
    "lossy": LossyParams(threshold=0.2),
    "typical": TypicalParams(epsilon=0.05, delta=0.5),
}


@pytest.mark.parametrize("name", list(VERIFIERS))
def test_tokens_and_provenance_equal_the_slow_decoder(name: str) -> None:
    pairs = some_pairs() if name.startswith(("csd", "hybrid")) else {}
    runtime = runtime_with(pairs)
    request = make_request(
        PROMPT, verifier=VERIFIERS[name], drafter="model", num_draft_tokens=K, max_tokens=60, ignore_eos=True
    )
    driver = Driver(runtime)
    (sequence,) = driver.run([request])
    want, origin = decode(
        target_model(),
        draft_model(),
        PROMPT,
        VERIFIERS[name],
        K,
        60,
        pairs,
        protected=lambda d, c: bool({d, c} & runtime.control_ids),
    )
    assert sequence.output == want
    assert [t.provenance.value for t in driver.delivered[id(sequence)]] == origin
    loosened = sum(1 for how in origin if Provenance(how).loosened)
    assert sequence.counters.loosened.total() == loosened
    assert (loosened > 0) == (name != "strict")


def deliver(runtime: Runtime, request: GenerationRequest) -> tuple[Sequence, list[CommittedToken]]:
    driver = Driver(runtime)
    (sequence,) = driver.run([request])
    return sequence, driver.delivered[id(sequence)]


@pytest.mark.parametrize("verifier", [StrictParams(), LossyParams(threshold=0.05)])
def test_logprobs_are_the_raw_log_softmax_of_each_tokens_own_row(verifier: VerifierParams) -> None:
    request = make_request(
        PROMPT,
        verifier=verifier,
        drafter="model",
        num_draft_tokens=K,
        max_tokens=50,
        ignore_eos=True,
        logprobs=3,
        temperature=0.8,
        seed=3,
        presence_penalty=0.6,
        logit_bias={11: 2.0},
    )
    sequence, delivered = deliver(runtime_with(), request)
    if isinstance(verifier, LossyParams):
        assert sequence.counters.loosened.total() > 0
    rows = torch.log_softmax(plain_logits(target_model(), sequence.tokens), -1)
    for index, token in enumerate(delivered):
        row = rows[len(PROMPT) + index - 1]
        assert token.logprobs is not None
        assert token.logprobs.logprob == pytest.approx(float(row[token.token_id]), abs=1e-4)
        best = row.topk(3)
        assert [t for t, _ in token.logprobs.top] == best.indices.tolist()
        assert [p for _, p in token.logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def text_and_new_token(runtime: Runtime) -> tuple[list[int], int]:
    """A greedy output, and a position from 10 on where a token stands for the first time."""
    request = make_request(PROMPT, max_tokens=30, ignore_eos=True)
    text = outputs(runtime, [request])[0]
    at = next(i for i in range(10, 30) if text[i] not in text[:i])
    return text, at


@pytest.mark.parametrize("drafter", ["model", "multilevel"])
def test_end_token_inside_an_accepted_block_is_the_last_one(drafter: str) -> None:
    """draft = target, so whole blocks are accepted and the end token falls in the middle of one."""
    runtime = make_runtime(target_model(), target_model())
    text, at = text_and_new_token(runtime)
    base = make_request(PROMPT, drafter=drafter, num_draft_tokens=15, max_tokens=30, ignore_eos=True)
    request = dataclasses.replace(base, end_token_ids=frozenset({text[at]}))
    sequence, _ = deliver(runtime, request)
    assert sequence.output == text[: at + 1]
    assert sequence.finish_reason is FinishReason.STOP
    assert sequence.counters.draft_tokens >= sequence.counters.accepted_tokens
    assert sequence.counters.round_tokens == at


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 17, 18])
def test_max_tokens_inside_an_accepted_block_delivers_exactly_that_many(max_tokens: int) -> None:
    runtime = make_runtime(target_model(), target_model())
    text, _ = text_and_new_token(runtime)
    request = make_request(PROMPT, drafter="model", num_draft_tokens=15, max_tokens=max_tokens, ignore_eos=True)
    sequence, delivered = deliver(runtime, request)
    assert sequence.output == text[:max_tokens]
    assert len(delivered) == max_tokens
    assert sequence.finish_reason is FinishReason.LENGTH
    assert sequence.counters.accepted_tokens <= max_tokens


ANYTHING_GOES = (LossyParams(threshold=1e-9), FlyParams(entropy_threshold=0.0, window=0))


@pytest.mark.parametrize("verifier", ANYTHING_GOES, ids=["lossy", "fly"])
class TestProtectedPositions:
    """Verifiers that would loosen every mismatch; what the user forbade still never comes out."""

    def run(self, verifier: VerifierParams, **options: object) -> tuple[Sequence, list[CommittedToken]]:
        request = make_request(
            PROMPT,
            verifier=verifier,
            drafter="model",
            num_draft_tokens=K,
            max_tokens=60,
            **{"ignore_eos": True, **options},  # type: ignore[arg-type]
        )
        return deliver(runtime_with(), request)

    def test_without_protection_everything_is_loosened(self, verifier: VerifierParams) -> None:
        sequence, delivered = self.run(verifier)
        assert sequence.counters.loosened.total() > 5
        natural = {Provenance.TARGET, Provenance.NATIVE, Provenance.BONUS, Provenance.CORRECTION}
        for token in delivered:
            assert token.provenance in natural or token.token_id not in runtime_with().control_ids

    def test_negative_bias(self, verifier: VerifierParams) -> None:
        _, free = self.run(verifier)
        loosened = {t.token_id for t in free if t.provenance.loosened}
        bias = dict.fromkeys(loosened, -0.01)
        _, bound = self.run(verifier, logit_bias=bias)
        assert not [t for t in bound if t.provenance.loosened and t.token_id in loosened]

    def test_filtered_out_tokens(self, verifier: VerifierParams) -> None:
        for temperature in (0.0, 1.0):
            sequence, delivered = self.run(verifier, top_k=1, temperature=temperature, seed=1)
            assert not [t for t in delivered if t.provenance.loosened]
            assert sequence.counters.loosened.total() == 0

    def test_control_and_end_tokens(self, verifier: VerifierParams) -> None:
        _, free = self.run(verifier)
        loosened = {t.token_id for t in free if t.provenance.loosened}
        runtime = runtime_with()
        runtime.control_ids = frozenset(loosened)
        request = make_request(
            PROMPT, verifier=verifier, drafter="model", num_draft_tokens=K, max_tokens=60, ignore_eos=True
        )
        _, bound = deliver(runtime, request)
        assert not [t for t in bound if t.provenance.loosened and t.token_id in loosened]

    def test_strict_prefix(self, verifier: VerifierParams) -> None:
        _, free = self.run(verifier)
        assert [i for i, t in enumerate(free) if t.provenance.loosened and i < 30]
        _, bound = self.run(verifier, strict_prefix=30)
        assert not [i for i, t in enumerate(bound) if t.provenance.loosened and i < 30]
        assert [i for i, t in enumerate(bound) if t.provenance.loosened and i >= 30]

    def test_min_tokens_masks_the_end(self, verifier: VerifierParams) -> None:
        sequence, _ = self.run(verifier, ignore_eos=False, min_tokens=50)
        assert EOS not in sequence.output[:50]


def test_each_round_costs_one_target_forward_whatever_the_verifiers() -> None:
    runtime = runtime_with()
    verifiers = [OffParams(), *VERIFIERS.values(), StrictParams()]
    drafters = ["none", *(["model", "multilevel", "prompt_lookup"] * len(verifiers))][: len(verifiers)]
    requests = [
        make_request(
            random_prompt(5 + 7 * i, seed=i),
            verifier=verifier,
            drafter=drafter,
            num_draft_tokens=0 if drafter == "none" else 3 + i,
            temperature=0.5 * (i % 3),
            seed=i,
            max_tokens=20 + i,
        )
        for i, (verifier, drafter) in enumerate(zip(verifiers, drafters, strict=True))
    ]
    driver = Driver(runtime)
    driver.run(requests)
    assert len({r.verifier.type for r in requests}) >= 5
    assert runtime.target.forwards == len(driver.rounds)


def test_plain_rounds_teach_the_cost_table_and_speedup_is_counted_for_drafted_ones() -> None:
    runtime = runtime_with()
    outputs(runtime, [make_request(PROMPT, max_tokens=10, ignore_eos=True)])
    assert runtime.cost.off_step(1) is not None
    request = make_request(PROMPT, drafter="model", num_draft_tokens=3, max_tokens=10, ignore_eos=True)
    sequence, _ = deliver(runtime, request)
    assert sequence.counters.estimated_speedup is not None
    assert sequence.counters.off_seconds > 0


@pytest.mark.parametrize("drafter", ["prompt_lookup", "multilevel"])
def test_the_lookup_index_grows_with_each_prefill_chunk(drafter: str) -> None:
    """Not by the whole prompt in the first round that drafts."""
    driver = Driver(runtime_with())
    sequence = Sequence(make_request(random_prompt(100, seed=2), drafter=drafter, num_draft_tokens=4))
    indexed = []
    for _ in range(4):
        driver.step([sequence])
        assert sequence.ngrams is not None
        indexed.append(len(sequence.ngrams))
    assert indexed == [32, 64, 96, 101]  # with the token that the last round delivered


def test_a_round_of_catch_ups_alone_runs_the_draft_only() -> None:
    runtime = runtime_with()
    assert runtime.draft is not None
    sequence = Sequence(make_request(PROMPT, drafter="model", num_draft_tokens=4))
    Driver(runtime).step([sequence])
    assert (runtime.target.forwards, runtime.draft.forwards, sequence.draft_tokens) == (1, 0, 0)
    result = run_round(RoundPlan((), (CatchUp(sequence, len(PROMPT)),)), runtime)
    assert (runtime.target.forwards, runtime.draft.forwards, sequence.draft_tokens) == (1, 1, len(PROMPT))
    assert (result.items, result.forward_seconds, result.decoding) == ((), 0.0, 0)
    assert result.draft_seconds > 0
    assert runtime.cost.off_step(0) is None
    runtime.pool.check_integrity([sequence])
