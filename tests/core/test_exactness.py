"""`strict` gives the very tokens `off` gives: every drafter, draft, block length, sampling and company."""

import copy
import functools

import pytest
import torch
from transformers import PreTrainedModel

from core.models.attention import BackendSpec
from core.models.attention_flash import prepare_flash
from core.runtime import Runtime
from core.sequence import CommittedToken, GenerationRequest, Sequence
from core.verifiers.params import (
    CsdParams,
    FlyParams,
    HybridParams,
    LossyParams,
    StrictParams,
    TypicalParams,
    VerifierParams,
)
from tests.core.models.flash_stand_in import flash_attn_varlen_func
from tests.excuses import excused
from tests.tiny import Driver, make_request, make_runtime, noisy_copy, outputs, random_model, random_prompt

SAMPLING: dict[str, dict[str, object]] = {
    "greedy": {},
    "greedy-penalties": {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
    "t0.7-top_p": {"temperature": 0.7, "top_p": 0.9, "seed": 11},
    "t1.3-top_k": {"temperature": 1.3, "top_k": 20, "seed": 12},
    "t1.3-min_p": {"temperature": 1.3, "min_p": 0.05, "seed": 13},
    "t1.3-free": {"temperature": 1.3, "seed": 14},
    "t0.7-everything": {
        "temperature": 0.7,
        "top_p": 0.95,
        "top_k": 50,
        "min_p": 0.01,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "logit_bias": {7: -100.0, 9: 3.0},
        "min_tokens": 10,
        "seed": 15,
    },
    "t1.3-bias-negative-seed": {"temperature": 1.3, "top_p": 0.8, "logit_bias": {5: 4.0}, "seed": -3},
}
LENGTHS = (3, 17, 40, 75, 5, 33, 64, 9)  # prompts: shorter and longer than a block and a prefill chunk


@functools.cache
def target_model() -> PreTrainedModel:
    return random_model(1)


@functools.cache
def draft_model(kind: str) -> PreTrainedModel:
    if kind == "equal":
        return target_model()
    return random_model(2) if kind == "random" else noisy_copy(target_model())


def prompt_of(name: str) -> list[int]:
    index = list(SAMPLING).index(name)
    prompt = random_prompt(LENGTHS[index], seed=100 + index)
    # Repeat a piece so that prompt lookup finds something to propose.
    return prompt + prompt[: len(prompt) // 2]


def request_for(name: str, **options: object) -> GenerationRequest:
    return make_request(prompt_of(name), request_id=name, **{**SAMPLING[name], **options})  # type: ignore[arg-type]


@functools.cache
def expected(name: str) -> tuple[int, ...]:
    return tuple(outputs(make_runtime(target_model()), [request_for(name)])[0])


class Comparison:
    """Compares outputs with `off` and counts the excused differences, which must stay rare."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.excuses = 0

    def check(self, request: GenerationRequest, got: list[int]) -> None:
        want = list(expected(request.request_id))
        if got != want:
            rows = request.num_draft_tokens + 1
            assert excused(self.runtime.target, request, want, got, rows), (request, want, got)
            self.excuses += 1


def test_expected_text_varies() -> None:
    for name in SAMPLING:
        text = expected(name)
        assert len(set(text)) > len(text) // 4, (name, text)


@pytest.mark.parametrize("num_draft_tokens", [1, 4, 15])
@pytest.mark.parametrize("drafter", ["model", "prompt_lookup", "multilevel"])
@pytest.mark.parametrize("draft", ["equal", "random", "noisy"])
def test_strict_equals_off_eight_at_a_time(draft: str, drafter: str, num_draft_tokens: int) -> None:
    runtime = make_runtime(target_model(), draft_model(draft))
    requests = [request_for(name, drafter=drafter, num_draft_tokens=num_draft_tokens) for name in SAMPLING]
    comparison = Comparison(runtime)
    for request, got in zip(requests, outputs(runtime, requests), strict=True):
        comparison.check(request, got)
    assert comparison.excuses <= 1


@pytest.mark.parametrize("name", list(SAMPLING))
@pytest.mark.parametrize("drafter", ["model", "prompt_lookup", "multilevel"])
def test_strict_equals_off_alone(name: str, drafter: str) -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    comparison = Comparison(runtime)
    for num_draft_tokens in (1, 4, 15):
        request = request_for(name, drafter=drafter, num_draft_tokens=num_draft_tokens)
        comparison.check(request, outputs(runtime, [request])[0])
    assert comparison.excuses <= 1


def test_strict_equals_off_in_mixed_company() -> None:
    """Eight sequences, five verifiers, every drafter: the strict and off ones are what they are alone."""
    runtime = make_runtime(target_model(), draft_model("noisy"))
    company: list[tuple[str, int, VerifierParams | None]] = [
        ("none", 0, None),
        ("model", 4, StrictParams()),
        ("multilevel", 15, FlyParams(entropy_threshold=0.0)),
        ("prompt_lookup", 7, StrictParams()),
        ("model", 9, LossyParams(threshold=0.1)),
        ("multilevel", 8, StrictParams()),
        ("model", 5, CsdParams()),
        ("multilevel", 15, HybridParams(window=3)),
    ]
    requests = [
        request_for(name, drafter=drafter, num_draft_tokens=k, verifier=verifier)
        for name, (drafter, k, verifier) in zip(SAMPLING, company, strict=True)
    ]
    comparison = Comparison(runtime)
    for request, got in zip(requests, outputs(runtime, requests), strict=True):
        if request.verifier.type in ("strict", "off"):
            comparison.check(request, got)
    assert comparison.excuses <= 1


def test_draft_equal_to_target_accepts_everything() -> None:
    runtime = make_runtime(target_model(), target_model())
    request = request_for("greedy", drafter="model", num_draft_tokens=4, ignore_eos=True, max_tokens=41)
    (sequence,) = Driver(runtime).run([request])
    counters = sequence.counters
    assert counters.accepted_tokens == counters.draft_tokens == 32
    assert counters.bonus_tokens == counters.rounds == 8
    assert counters.mean_accepted_length == 5.0


def test_sampling_draft_equal_to_target_accepts_everything() -> None:
    """The race shares its noise between draft and target, so equal models agree at any temperature."""
    runtime = make_runtime(target_model(), target_model())
    for name in ("t1.3-free", "t0.7-everything"):
        request = request_for(name, drafter="model", num_draft_tokens=4, ignore_eos=True, max_tokens=21)
        (sequence,) = Driver(runtime).run([request])
        assert sequence.counters.accepted_tokens == sequence.counters.draft_tokens == 16


def test_random_draft_is_rarely_accepted() -> None:
    runtime = make_runtime(target_model(), draft_model("random"))
    request = request_for("greedy", drafter="model", num_draft_tokens=4, ignore_eos=True)
    (sequence,) = Driver(runtime).run([request])
    assert sequence.counters.accepted_tokens < 0.2 * sequence.counters.draft_tokens


def test_noisy_draft_is_accepted_in_part() -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    request = request_for("greedy", drafter="model", num_draft_tokens=4, ignore_eos=True, max_tokens=100)
    (sequence,) = Driver(runtime).run([request])
    share = sequence.counters.accepted_tokens / sequence.counters.draft_tokens
    assert 0.2 < share < 0.95


@pytest.mark.parametrize("name", ["greedy", "t1.3-free", "t0.7-everything"])
@pytest.mark.parametrize("draft", ["random", "noisy"])
def test_multilevel_drafts_equal_model_drafts(name: str, draft: str) -> None:
    def drafts(drafter: str) -> tuple[list[int], list[tuple[int, int]], int]:
        runtime = make_runtime(target_model(), draft_model(draft))
        driver = Driver(runtime)
        (sequence,) = driver.run([request_for(name, drafter=drafter, num_draft_tokens=8, ignore_eos=True)])
        assert runtime.draft is not None
        items = [(r.items[0].drafted, r.items[0].accepted) for r in driver.rounds]
        return sequence.output, items, runtime.draft.forwards

    plain, lookup = drafts("model"), drafts("multilevel")
    assert plain[:2] == lookup[:2]
    assert lookup[2] <= plain[2]


@pytest.mark.parametrize("drafter", ["model", "multilevel", "prompt_lookup"])
@pytest.mark.parametrize("name", ["greedy", "t0.7-everything"])
def test_prefix_hit_after_off_drafts_as_a_cold_run_does(name: str, drafter: str) -> None:
    """The first request had `off`, so its cached blocks hold no draft KV; the second must fill it in."""
    prompt = [*prompt_of("t0.7-top_p"), *random_prompt(25, seed=9)]
    asked = make_request(prompt, drafter=drafter, num_draft_tokens=6, ignore_eos=True, **SAMPLING[name])
    plain = make_request(prompt, ignore_eos=True, **SAMPLING[name])

    def run(runtime: Runtime, request: GenerationRequest) -> tuple[Sequence, list[CommittedToken], int]:
        driver = Driver(runtime)
        (sequence,) = driver.run([request])
        chunks = sum(1 for result in driver.rounds if not result.items[0].tokens)
        return sequence, driver.delivered[id(sequence)], chunks

    warm = make_runtime(target_model(), draft_model("noisy"))
    first, _, prefilled = run(warm, plain)
    assert warm.draft is not None
    assert (prefilled, warm.draft.forwards) == (2, 0)  # 85 tokens in chunks of 32
    second, delivered, prefilled = run(warm, asked)
    assert prefilled == 0  # all but the last block came from the cache
    cold, expected, prefilled = run(make_runtime(target_model(), draft_model("noisy")), asked)
    assert prefilled == 2
    assert second.output == cold.output == first.output
    assert [token.provenance for token in delivered] == [token.provenance for token in expected]
    assert second.counters.draft_tokens == cold.counters.draft_tokens > 0
    assert (warm.draft.forwards > 0) == (drafter != "prompt_lookup")


def test_prefix_hit_is_taken_and_changes_nothing() -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    request = request_for("t1.3-top_k", drafter="multilevel", num_draft_tokens=6)
    first = outputs(runtime, [request])[0]
    driver = Driver(runtime)
    (again,) = driver.run([request])
    assert again.output == first == list(expected("t1.3-top_k"))
    prefilled = sum(1 for r in driver.rounds if not r.items[0].tokens)
    cold = Driver(make_runtime(target_model(), draft_model("noisy")))
    cold.run([request])
    assert prefilled < sum(1 for r in cold.rounds if not r.items[0].tokens)


LOOSE: dict[str, VerifierParams] = {
    "fly": FlyParams(entropy_threshold=0.05, window=2),
    "fly-no-window": FlyParams(entropy_threshold=0.0, window=0),
    "lossy": LossyParams(threshold=0.05),
    "typical": TypicalParams(epsilon=0.03),
    "hybrid": HybridParams(entropy_threshold=0.05, window=2),
}


@pytest.mark.parametrize("verifier", list(LOOSE))
@pytest.mark.parametrize("name", ["greedy", "t1.3-free"])
def test_loose_answer_is_the_same_alone_and_in_company(verifier: str, name: str) -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))
    request = request_for(name, drafter="multilevel", num_draft_tokens=8, verifier=LOOSE[verifier], max_tokens=80)
    (alone,) = Driver(runtime).run([request])
    others = [request_for(n, drafter="model", num_draft_tokens=3) for n in SAMPLING if n != name]
    fresh = make_runtime(target_model(), draft_model("noisy"))
    together = Driver(fresh, prefill_chunk=16).run([*others[:3], request, *others[3:]])[3]
    assert together.output == alone.output
    assert together.counters.loosened == alone.counters.loosened
    if verifier != "hybrid":
        assert alone.counters.loosened.total() > 0


@pytest.mark.parametrize("verifier", list(LOOSE))
def test_smaller_max_tokens_gives_a_prefix(verifier: str) -> None:
    runtime = make_runtime(target_model(), draft_model("noisy"))

    def run(max_tokens: int) -> list[int]:
        request = request_for(
            "greedy", drafter="model", num_draft_tokens=8, verifier=LOOSE[verifier], max_tokens=max_tokens
        )
        return outputs(runtime, [request])[0]

    full = run(60)
    for max_tokens in range(1, 60, 3):
        assert run(max_tokens) == full[:max_tokens]


@pytest.mark.parametrize("drafter", ["model", "multilevel"])
def test_strict_equals_off_through_flash_attention_in_bfloat16(drafter: str) -> None:
    """By the stand-in of its kernel, so on the CPU; blocks of 256 hold whole prompts, hence no prefix is cached."""
    flash = BackendSpec("stand-in", functools.partial(prepare_flash, varlen=flash_attn_varlen_func), block_size=256)
    half = {"num_blocks": 8, "block_size": 256, "backend": flash, "dtype": torch.bfloat16}
    target, draft = (copy.deepcopy(model).bfloat16() for model in (target_model(), draft_model("noisy")))
    names = ("greedy-penalties", "t1.3-free", "t0.7-everything")
    plain = outputs(make_runtime(target, **half), [request_for(name) for name in names])
    runtime, excuses = make_runtime(target, draft, **half), 0
    requests = [request_for(name, drafter=drafter, num_draft_tokens=4) for name in names]
    for request, got, want in zip(requests, outputs(runtime, requests), plain, strict=True):
        if got != want:
            assert excused(runtime.target, request, want, got, rows=5), (request, want, got)
            excuses += 1
    assert excuses <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_but_rounding_is_an_excuse(dtype: torch.dtype) -> None:
    runtime = make_runtime(copy.deepcopy(target_model()).to(dtype), dtype=dtype)
    request = request_for("greedy", max_tokens=12, ignore_eos=True)
    [want] = outputs(runtime, [request])
    for at in (0, 5, 11):
        got = [*want[:at], want[at] + 1, *want[at + 1 :]]
        assert not excused(runtime.target, request, want, got, rows=5)
    assert not excused(runtime.target, request, want, want[:-1], rows=5)
