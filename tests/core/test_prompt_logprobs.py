"""Log-probabilities of the prompt's own tokens, against transformers' whole forward of the same model."""

from dataclasses import replace

import pytest
import torch

from core.provenance import FinishReason
from core.round import RoundItem, RoundPlan, run_round
from core.sequence import GenerationRequest, Sequence, SequenceState
from core.verifiers.params import FlyParams, HybridParams, StrictParams, VerifierParams
from tests.naive import plain_logits
from tests.tiny import Driver, make_request, make_runtime, noisy_copy, outputs, random_model, random_prompt

TARGET = random_model(1)
DRAFT = noisy_copy(TARGET)
LENGTH = 75
PROMPT = random_prompt(LENGTH, seed=4)


def scored(prompt: list[int] = PROMPT, num_top: int = 3, **options: object) -> GenerationRequest:
    return replace(make_request(prompt, **options), prompt_logprobs=num_top)  # type: ignore[arg-type]


def check(sequence: Sequence, num_top: int = 3) -> None:
    prompt = list(sequence.request.prompt)
    rows = torch.log_softmax(plain_logits(TARGET, prompt), -1)
    assert len(sequence.prompt_logprobs) == len(prompt) - 1
    for row, token, told in zip(rows, prompt[1:], sequence.prompt_logprobs, strict=False):
        assert told.logprob == pytest.approx(float(row[token]), abs=1e-4)
        best = row.topk(num_top)
        assert [t for t, _ in told.top] == best.indices.tolist()
        assert [p for _, p in told.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        for other, logprob in told.top:
            assert other != token or logprob == told.logprob  # to the bit: "is it greedy" is asked with ==


@pytest.mark.parametrize("chunk", [1, 7, 16, 32, LENGTH - 1, LENGTH, 200])
@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_every_prompt_token_is_told_of_however_the_prompt_is_chunked(chunk: int, max_tokens: int) -> None:
    (sequence,) = Driver(make_runtime(TARGET), prefill_chunk=chunk).run([scored(max_tokens=max_tokens)])
    check(sequence)
    assert sequence.output_len == max_tokens
    assert sequence.finish_reason is FinishReason.LENGTH
    assert (
        sequence.output
        == outputs(make_runtime(TARGET), [make_request(PROMPT, max_tokens=max_tokens or 1)])[0][:max_tokens]
    )


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_prompts(length: int) -> None:
    (sequence,) = Driver(make_runtime(TARGET)).run([scored(PROMPT[:length], max_tokens=0)])
    check(sequence)


def test_a_prefix_in_the_cache_is_computed_again() -> None:
    runtime = make_runtime(TARGET)
    outputs(runtime, [make_request(PROMPT, max_tokens=8)])
    assert runtime.pool.num_cached >= LENGTH // 16
    (sequence,) = Driver(runtime).run([scored()])
    check(sequence)
    runtime.pool.check_integrity([])


def test_what_it_computed_serves_others() -> None:
    runtime = make_runtime(TARGET)
    Driver(runtime).run([scored(max_tokens=0)])
    later = Sequence(make_request(PROMPT))
    assert runtime.pool.match_prefix(later) == LENGTH // 16 * 16


VERIFIERS = [StrictParams(), FlyParams(window=2, entropy_threshold=0.1), HybridParams(window=2)]


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.type)
@pytest.mark.parametrize("drafter", ["model", "multilevel", "prompt_lookup"])
def test_neighbours_and_verifiers_change_neither_the_prompts_logprobs_nor_the_answers(
    verifier: VerifierParams, drafter: str
) -> None:
    options = {"verifier": verifier, "drafter": drafter, "num_draft_tokens": 5, "max_tokens": 20, "ignore_eos": True}
    asked = [
        scored(logprobs=2, temperature=1.0, seed=1, presence_penalty=1.0, logit_bias={9: 50.0}, **options),
        make_request(random_prompt(40, seed=5), **options),  # type: ignore[arg-type]
        scored(random_prompt(50, seed=6), **options),
        scored(random_prompt(33, seed=7), max_tokens=0),
    ]
    sequences = Driver(make_runtime(TARGET, DRAFT), prefill_chunk=16).run(asked)
    for request, sequence in zip(asked, sequences, strict=True):
        if request.prompt_logprobs is not None:
            check(sequence)
        alone = Driver(make_runtime(TARGET, DRAFT), prefill_chunk=16).run([replace(request, prompt_logprobs=None)])
        assert sequence.output == alone[0].output


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5, 6])
def test_a_preempted_sequence_owes_no_row_twice(after: int) -> None:
    """Preempted after so many chunks (or rounds), with another one's longer prefix of the same text in the cache."""
    runtime = make_runtime(TARGET)
    driver = Driver(runtime, prefill_chunk=20)
    sequence = Sequence(scored(max_tokens=6, ignore_eos=True))
    for _ in range(after):
        driver.step([sequence])
    runtime.pool.release(sequence)
    outputs(runtime, [make_request(PROMPT, max_tokens=2)])
    runtime.pool.match_prefix(sequence)
    assert sequence.target_tokens <= min(20 * after, LENGTH + after)
    while not sequence.finished:
        driver.step([sequence])
    check(sequence)
    assert sequence.output == outputs(make_runtime(TARGET), [make_request(PROMPT, max_tokens=6, ignore_eos=True)])[0]


def test_no_more_logits_than_owed_are_computed() -> None:
    runtime = make_runtime(TARGET)
    widths = []
    forward = runtime.target.forward

    def watch(layout):  # type: ignore[no-untyped-def]
        widths.append(layout.num_logits)
        return forward(layout)

    runtime.target.forward = watch  # type: ignore[method-assign]
    Driver(runtime, prefill_chunk=32).run([scored(max_tokens=3, ignore_eos=True)])
    assert widths == [32, 32, 11, 1, 1]


def test_an_answer_of_no_tokens_draws_none_and_feeds_no_draft() -> None:
    runtime = make_runtime(TARGET, DRAFT)
    assert runtime.draft is not None
    request = scored(max_tokens=0, drafter="multilevel", num_draft_tokens=4)
    driver = Driver(runtime, prefill_chunk=32)
    (sequence,) = driver.run([request])
    assert (sequence.output, driver.delivered[id(sequence)]) == ([], [])
    assert runtime.draft.forwards == 0
    assert sequence.counters.rounds == 0


def test_without_being_asked_nothing_is_kept() -> None:
    sequence = Sequence(make_request(PROMPT, max_tokens=0))
    sequence.state = SequenceState.RUNNING
    runtime = make_runtime(TARGET)
    runtime.pool.grow(sequence, LENGTH)
    run_round(RoundPlan((RoundItem(sequence, LENGTH),)), runtime)
    assert sequence.finished
    assert sequence.prompt_logprobs == []
