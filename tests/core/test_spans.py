"""What a span tracker protects is never loosened; everything else still is."""

from collections.abc import Sequence as Items

import pytest

from core.provenance import Provenance
from core.sequence import GenerationRequest, Sequence
from core.verifiers.params import CsdParams, FlyParams, HybridParams, LossyParams, TypicalParams, VerifierParams
from tests.tiny import Driver, make_request, make_runtime, random_model, random_prompt


class EveryOther:
    """Protects stretches of `length` output tokens in turn, and counts what it is told."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.pushed: list[int] = []
        self.asked: list[tuple[int, int]] = []

    def push(self, token_id: int) -> None:
        self.pushed.append(token_id)

    def inside(self, position: int) -> bool:
        return position // self.length % 2 == 1

    def protected(self, drafts: Items[int], choices: Items[int]) -> list[bool]:
        self.asked.append((len(drafts), len(choices)))
        return [self.inside(len(self.pushed) + index) for index in range(len(drafts))]


def request(verifier: VerifierParams) -> GenerationRequest:
    return make_request(
        random_prompt(20, seed=4),
        drafter="model",
        num_draft_tokens=9,
        max_tokens=80,
        verifier=verifier,
        ignore_eos=True,
    )


LOOSE: list[VerifierParams] = [
    LossyParams(threshold=1e-20),
    TypicalParams(epsilon=1e-20),
    FlyParams(entropy_threshold=0.0, window=0),
    HybridParams(entropy_threshold=0.0, window=0),
]


@pytest.mark.parametrize("verifier", LOOSE, ids=lambda verifier: verifier.type)
def test_only_tokens_outside_of_spans_are_loosened(verifier: VerifierParams) -> None:
    runtime = make_runtime(random_model(31), random_model(32))
    spans = EveryOther(7)
    driver, sequence = Driver(runtime), Sequence(request(verifier), spans=spans)
    driver.finish([sequence])
    delivered = driver.delivered[id(sequence)]
    loosened = [index for index, token in enumerate(delivered) if token.provenance.loosened]
    assert len(loosened) > 10
    assert not any(spans.inside(index) for index in loosened)
    assert any(
        spans.inside(index) and token.provenance is Provenance.CORRECTION for index, token in enumerate(delivered)
    )
    assert spans.pushed == sequence.output
    assert all(len_choices >= len_drafts for len_drafts, len_choices in spans.asked)


def test_without_spans_the_same_stretches_are_loosened() -> None:
    runtime = make_runtime(random_model(31), random_model(32))
    driver, sequence = Driver(runtime), Sequence(request(LOOSE[0]))
    driver.finish([sequence])
    spans = EveryOther(7)
    delivered = driver.delivered[id(sequence)]
    assert any(spans.inside(index) and token.provenance.loosened for index, token in enumerate(delivered))


def test_strict_requests_never_ask_the_tracker() -> None:
    runtime = make_runtime(random_model(31), random_model(32))
    spans = EveryOther(7)
    strict = make_request(random_prompt(20, seed=4), drafter="model", num_draft_tokens=9, ignore_eos=True)
    Driver(runtime).finish([Sequence(strict, spans=spans)])
    assert not spans.asked
    csd = EveryOther(7)
    Driver(runtime).finish([Sequence(request(CsdParams()), spans=csd)])  # no memory, so nothing could be loosened
    assert not csd.asked
