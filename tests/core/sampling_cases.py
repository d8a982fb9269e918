"""Random requests, sequences, drafts and logits for the sampling tests."""

import torch
from hypothesis import strategies as st

from core.sampling_params import SamplingParams
from core.sequence import GenerationRequest, Sequence
from core.verifiers.params import StrictParams

VOCAB = 200  # three blocks of 64 ids and a short one
tokens = st.integers(0, VOCAB - 1)
drafts_lists = st.lists(tokens, max_size=5)
temperatures = st.sampled_from([0.0, 1e-9, 0.3, 1.0, 1.7, 100.0])


@st.composite
def sampling_params(draw, temperature=temperatures):
    penalised = draw(st.booleans())
    return SamplingParams(
        temperature=draw(temperature),
        top_k=draw(st.sampled_from([0, 0, 1, 3, 50, 199, 500])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.0, 0.1, 0.61, 0.937, 0.99999])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.013, 0.31, 1.0])),
        presence_penalty=draw(st.sampled_from([0.0, 0.7, -1.3])) if penalised else 0.0,
        frequency_penalty=draw(st.sampled_from([0.0, 0.3, -2.0])) if penalised else 0.0,
        repetition_penalty=draw(st.sampled_from([1.0, 1.2, 0.7])) if penalised else 1.0,
        logit_bias=draw(st.dictionaries(tokens, st.floats(-100, 100), max_size=3)),
        seed=draw(st.integers(0, (1 << 64) - 1)),
        choice_index=draw(st.integers(0, 3)),
        min_tokens=draw(st.sampled_from([0, 0, 3])),
        logprobs=draw(st.sampled_from([None, None, 0, 1, 5, VOCAB + 9])),
    )


STRICT = st.just(StrictParams())
NO_PREFIX = st.just(0)


@st.composite
def make_sequence(draw, params, verifier=STRICT, strict_prefix=NO_PREFIX):
    request = GenerationRequest(
        "r",
        tuple(draw(st.lists(tokens, min_size=1, max_size=8))),
        100,
        draw(params),
        draw(verifier),
        strict_prefix=draw(strict_prefix),
        end_token_ids=draw(st.frozensets(tokens, max_size=3)),
    )
    sequence = Sequence(request)
    for token in draw(st.lists(tokens, max_size=6)):
        sequence.tokens.append(token)
        if request.sampling.has_penalties:
            sequence.output_counts[token] += 1
    return sequence


def logits_of(seed, rows, kind, vocab=VOCAB):
    """normal: like a model's; ties: few distinct values; flat: nearly uniform; peaked: one token far ahead."""
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))
    if kind == "ties":
        return (logits * 2).round()
    if kind == "peaked":
        logits[torch.arange(rows), logits.argmax(-1)] += 20
        return logits
    return logits * {"normal": 3.0, "flat": 0.01}[kind]


kinds = st.sampled_from(["normal", "ties", "flat", "peaked"])
