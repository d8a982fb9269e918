"""A draft model with a shorter context than the target: it drafts as far as it can, and is never fed a position
that its table of learned ones lacks."""

from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from core.layout import RaggedLayout
from core.models.kv_cache import BlockPool
from core.models.runner import ModelRunner
from core.runtime import Runtime
from core.sequence import GenerationRequest, Sequence
from core.verifiers.params import FlyParams, VerifierParams
from tests.tiny import EOS, VOCAB, Driver, loaded, make_request, outputs, random_prompt

SHORT, LENGTH = 45, 60
SIZES = {
    "vocab_size": VOCAB,
    "n_positions": 200,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
}


def gpt2(positions: int) -> GPT2LMHeadModel:
    """Equal weights, whatever the number of positions."""
    torch.manual_seed(3)
    config = GPT2Config(**SIZES)
    model = GPT2LMHeadModel(config).eval().requires_grad_(False)
    model.lm_head.weight.mul_(6.0)
    table = model.transformer.wpe
    table.weight = torch.nn.Parameter(table.weight[:positions].clone(), requires_grad=False)
    return model


def runtime() -> Runtime:
    return Runtime(
        target=ModelRunner(replace(loaded(gpt2(200), "target"), max_context=200), 60, 16),
        draft=ModelRunner(replace(loaded(gpt2(SHORT), "draft"), max_context=SHORT), 60, 16),
        pool=BlockPool(60, 16),
        control_ids=frozenset({0, 1, EOS}),
    )


def ask(prompt_len: int, drafter: str, verifier: VerifierParams | None = None) -> GenerationRequest:
    options = {"verifier": verifier, "ignore_eos": True, "max_tokens": LENGTH, "temperature": 0.0}
    return make_request(random_prompt(prompt_len, seed=8), drafter=drafter, num_draft_tokens=6, **options)


@pytest.mark.parametrize("prompt_len", [5, 40, SHORT - 1, SHORT, SHORT + 1, 70])
@pytest.mark.parametrize("drafter", ["model", "multilevel"])
def test_answers_are_offs_and_drafts_end_with_the_drafts_context(drafter: str, prompt_len: int) -> None:
    off, fed = replace(ask(prompt_len, "none"), num_draft_tokens=0), [-1]
    on = runtime()
    assert on.draft is not None
    forward = on.draft.forward

    def watched(layout: RaggedLayout) -> torch.Tensor:
        fed.extend(layout.positions())
        return forward(layout)

    on.draft.forward = watched  # type: ignore[method-assign]
    (sequence,) = Driver(on).run([ask(prompt_len, drafter)])
    assert [sequence.output] == outputs(runtime(), [off])
    assert max(fed) < SHORT
    if prompt_len < SHORT:  # the last block of drafts ends in the draft's context, or just cannot begin in it
        assert max(fed) > SHORT - 8
        assert sequence.counters.accepted_tokens > 0
    else:
        assert sequence.counters.draft_tokens == 0


@pytest.mark.parametrize("drafter", ["model", "multilevel"])
def test_a_loose_answer_does_not_depend_on_company(drafter: str) -> None:
    requests = [ask(n, drafter, FlyParams(window=1, entropy_threshold=0.01)) for n in (5, 30, 41, 44, 45, 50)]

    def run(given: list[GenerationRequest]) -> list[Sequence]:
        return Driver(runtime()).run(given)

    together = run(requests)
    assert [sequence.output for sequence in together] == [run([request])[0].output for request in requests]
