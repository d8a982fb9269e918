"""Constraints on real weights and a real tokenizer: SmolLM2-135M with its own int8-packed copy as the draft."""

import json
from pathlib import Path

import jsonschema
import pytest
from transformers import AutoTokenizer

from core.models.kv_cache import BlockPool
from core.models.loader import load_model
from core.models.runner import ModelRunner
from core.provenance import FinishReason
from core.runtime import Runtime
from core.sampling_params import SamplingParams
from core.sequence import GenerationRequest, Sequence
from core.verifiers.params import FlyParams, HybridParams, LossyParams, OffParams, StrictParams, VerifierParams
from server.text.constraints import Constraints
from server.text.token_bytes import TokenBytes
from tests.tiny import Driver

pytestmark = pytest.mark.weights

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
CASES: list[tuple[VerifierParams, str]] = [
    (OffParams(), "none"),
    (StrictParams(), "multilevel"),
    (FlyParams(entropy_threshold=0.0, window=2), "model"),
    (HybridParams(entropy_threshold=0.0, window=2), "multilevel"),
    (LossyParams(threshold=1e-4), "model"),
]


def test_hot_json_is_valid_and_the_same_under_every_verifier(smollm2_folder: Path) -> None:
    """Five answers each at temperature 1.2: valid, never loosened, and so the very tokens of `off`."""
    target, draft = load_model(smollm2_folder, "fp16"), load_model(smollm2_folder, "int8")
    runtime = Runtime(
        target=ModelRunner(target, 400, 16),
        draft=ModelRunner(draft, 400, 16),
        pool=BlockPool(400, 16),
        control_ids=target.control_token_ids,
    )
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    table = TokenBytes.from_tokenizer(tokenizer, target.vocab_size, target.control_token_ids)
    constraints = Constraints.build(tokenizer, table, target.control_token_ids, target.eos_token_ids)
    constraint = constraints.json_schema(PERSON)
    prompt = tuple(tokenizer.encode("Here is a person as JSON:\n", add_special_tokens=False))
    expected: list[list[int]] = []
    for verifier, drafter in CASES:
        sequences = []
        for seed in range(5):
            request = GenerationRequest(
                request_id=f"{verifier.type}-{seed}",
                prompt=prompt,
                max_tokens=120,
                sampling=SamplingParams(temperature=1.2, seed=seed),
                verifier=verifier,
                drafter=drafter,
                num_draft_tokens=0 if drafter == "none" else 6,
                end_token_ids=target.eos_token_ids,
            )
            sequences.append(Sequence(request, grammar=constraint.start(request.end_token_ids)))
        Driver(runtime).finish(sequences)
        for sequence in sequences:
            assert sequence.finish_reason is FinishReason.STOP
            jsonschema.validate(json.loads(b"".join(table[token] for token in sequence.output)), PERSON)
            assert not sequence.counters.loosened
        expected = expected or [sequence.output for sequence in sequences]
        assert [sequence.output for sequence in sequences] == expected
    assert len({tuple(output) for output in expected}) == 5
