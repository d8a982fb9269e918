"""Target and draft with the same tokens, padded to different widths: no embedding meets an id it lacks."""

import functools

import pytest
from transformers import PreTrainedModel

from core.runtime import Runtime
from core.sequence import GenerationRequest
from core.verifiers.params import FlyParams
from tests.tiny import (
    VOCAB,
    Driver,
    make_request,
    make_runtime,
    noisy_copy,
    outputs,
    random_model,
    random_prompt,
    resized,
)

NARROW, WIDE = 185, VOCAB + 40


@functools.cache
def target_model() -> PreTrainedModel:
    return random_model(1)


@functools.cache
def draft_model(vocab: int) -> PreTrainedModel:
    return resized(noisy_copy(target_model()), vocab)


def runtime(vocab: int) -> Runtime:
    return make_runtime(target_model(), draft_model(vocab))


def low_prompt(length: int, seed: int) -> list[int]:
    """Ids that every one of the models has."""
    return [token % NARROW for token in random_prompt(length, seed)]


def requests(drafter: str, **options: object) -> list[GenerationRequest]:
    k = 0 if drafter == "none" else 6
    sampling: list[dict[str, object]] = [{}, {"temperature": 1.2, "seed": 3}, {"temperature": 0.9, "top_k": 30}]
    return [
        make_request(low_prompt(12 + 20 * n, n), drafter=drafter, num_draft_tokens=k, ignore_eos=True, **s, **options)  # type: ignore[arg-type]
        for n, s in enumerate(sampling)
    ]


@pytest.mark.parametrize("drafter", ["model", "multilevel"])
@pytest.mark.parametrize("vocab", [NARROW, WIDE])
def test_strict_equals_off(vocab: int, drafter: str) -> None:
    expected = outputs(runtime(vocab), requests("none"))
    assert max(map(max, expected)) >= NARROW
    sequences = Driver(runtime(vocab)).run(requests(drafter))
    assert [sequence.output for sequence in sequences] == expected
    assert any(sequence.counters.draft_tokens > 0 for sequence in sequences)


def test_a_wider_draft_proposes_none_of_its_padding() -> None:
    """The padding's logits are the draft's highest, so unmasked it would be drafted at once."""
    on = runtime(WIDE)
    assert on.draft is not None
    sequences = Driver(on).run(requests("model"))
    assert all(sequence.counters.accepted_tokens > 0 for sequence in sequences)


def test_a_narrower_draft_is_never_fed_an_id_it_lacks() -> None:
    """It drafts as long as the text has only its own ids, and from then on not at all."""
    driver = Driver(runtime(NARROW))
    (sequence,) = driver.run([requests("model", max_tokens=80)[0]])
    length, drafted = len(sequence.request.prompt), []
    for result in driver.rounds:
        item = result.items[0]
        if item.tokens:
            known = sequence.tokens[:length]
            drafted.append((max(known) < NARROW, item.drafted > 0))
            length += len(item.tokens)
    assert {(True, True), (False, False)} == set(drafted[1:])
    (foreign,) = Driver(runtime(NARROW)).run([make_request([5, 9, NARROW, 8], drafter="model", num_draft_tokens=4)])
    assert foreign.counters.draft_tokens == 0


@pytest.mark.parametrize("vocab", [NARROW, WIDE])
def test_a_loose_answer_is_the_same_alone_and_in_company(vocab: int) -> None:
    asked = requests("multilevel", verifier=FlyParams(entropy_threshold=0.0, window=1))
    together = Driver(runtime(vocab), prefill_chunk=16).run(asked)
    for request, sequence in zip(asked, together, strict=True):
        (alone,) = Driver(runtime(vocab)).run([request])
        assert alone.output == sequence.output
    assert sum(sequence.counters.loosened.total() for sequence in together) > 0
