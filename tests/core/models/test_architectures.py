"""What each architecture brings beside a plain forward: published names, ties, packed weights, refusals, exactness."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.models.architectures import SUPPORTED
from core.models.loader import InvalidModelFile, UnsupportedModel, load_model
from core.models.runner import ModelRunner
from core.verifiers.params import StrictParams
from tests.core.models.architecture_table import PAGE, written
from tests.core.models.test_runner import BLOCK, BLOCKS, Replay
from tests.core.models.tiny import FAMILIES, edit_json, make_model, save_model
from tests.excuses import excused
from tests.tiny import make_request, make_runtime, noisy_copy, outputs, random_prompt

_LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 8,
    "long_factor": [3.0] * 8,
}
WITH_EXPERTS = [family for family, (name, _) in FAMILIES.items() if SUPPORTED[name].experts]


def test_every_supported_architecture_is_proven_and_no_other() -> None:
    assert {name for name, _ in FAMILIES.values()} == SUPPORTED.keys()


def test_the_documented_table_is_current() -> None:
    """Else: python -m tests.core.models.architecture_table --write"""
    page = PAGE.read_text("utf-8")
    assert page == written(page)


@pytest.mark.parametrize(
    ("family", "published"),
    [
        ("mixtral", "model.layers.1.block_sparse_moe.experts.3.w1.weight"),
        ("qwen2-moe", "model.layers.0.mlp.experts.3.gate_proj.weight"),
        ("granite-moe", "model.layers.1.block_sparse_moe.input_linear.weight"),
        ("minimax-m2", "model.layers.1.block_sparse_moe.e_score_correction_bias"),
    ],
)
def test_the_proofs_read_the_names_that_checkpoints_are_published_with(
    family: str, published: str, tmp_path: Path
) -> None:
    oracle = save_model(tmp_path, family)
    assert published in load_file(tmp_path / "model.safetensors")
    assert published not in oracle.state_dict()


def test_a_checkpoint_of_the_bare_decoder_loads(tmp_path: Path) -> None:
    """GPT-2's names lack the prefix, and there are masks among its weights."""
    oracle = save_model(tmp_path, "gpt2")
    file = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): value.clone() for name, value in load_file(file).items()}
    save_file({**tensors, "h.0.attn.bias": torch.ones(1, 1, 4, 4)}, file)
    loaded = load_model(tmp_path, "float32")
    for name, value in oracle.named_parameters():
        assert torch.equal(loaded.model.get_parameter(name), value), name


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    save_model(tmp_path, "mixtral")
    file = tmp_path / "model.safetensors"
    tensors = {name: value.clone() for name, value in load_file(file).items()}
    for lost in ("w2", "w1"):  # of one kind; then of both that make one parameter
        del tensors[f"model.layers.0.block_sparse_moe.experts.2.{lost}.weight"]
        save_file(tensors, file)
        with pytest.raises(InvalidModelFile, match=r"layers\.0\.mlp\.experts"):
            load_model(tmp_path, "float32")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["gemma2", "cohere2", "granite", "glm4", "gpt-neox", "mixtral", "opt"])
def test_ties_are_followed(family: str, tied: bool, tmp_path: Path) -> None:
    oracle = save_model(tmp_path, family, tie_word_embeddings=tied)
    tokens, got = forward_of_one(tmp_path, "float32")
    with torch.no_grad():
        torch.testing.assert_close(got, oracle(tokens).logits[0], atol=5e-5, rtol=1e-4)


OTHER_WEIGHTS = {"bfloat16": 0.05, "fp16": 0.003, "int8_split": 0.07, "int8": 0.15}


@pytest.mark.parametrize("weights", OTHER_WEIGHTS)
@pytest.mark.parametrize(
    "family", ["llama-bias", "qwen2", "qwen3", "gemma2", "gemma3", "cohere2", "granite", "phi3", "gpt2", "opt", "glm4"]
)
def test_other_weights_stay_near_the_plain_forward(family: str, weights: str, tmp_path: Path) -> None:
    oracle = save_model(tmp_path, family, initializer_range=0.1)
    tokens, got = forward_of_one(tmp_path, weights)
    with torch.no_grad():
        expected = oracle(tokens).logits[0]
    assert (got - expected).norm() < OTHER_WEIGHTS[weights] * expected.norm()


@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_packed_experts_stay_near_the_plain_ones(family: str, tmp_path: Path) -> None:
    """Most rows do: where a router is all but undecided, rounding may choose another expert."""
    oracle = save_model(tmp_path, family)
    tokens, got = forward_of_one(tmp_path, "fp16")
    with torch.no_grad():
        expected = oracle(tokens).logits[0]
    near = (got - expected).norm(dim=1) < 0.005 * expected.norm(dim=1)
    assert near.sum() >= 16


@pytest.mark.parametrize("weights", ["float32", "fp16"])
@pytest.mark.parametrize("family", ["mixtral", "qwen2-moe", "glm4-moe"])
def test_experts_serve_each_row_alone(family: str, weights: str, tmp_path: Path) -> None:
    save_model(tmp_path, family)
    runner = ModelRunner(load_model(tmp_path, weights), BLOCKS, BLOCK)  # type: ignore[arg-type]
    alone, company = Replay(runner, [21], True, seed=3), Replay(runner, [21, 30, 12], True, seed=3)
    company.tokens[0] = alone.tokens[0]
    alone.round({0: 16}, {0: 1})
    alone.round({0: 5}, {0: 5})
    company.round({1: 20, 0: 16}, {1: 1, 0: 1})
    company.round({2: 12, 0: 5, 1: 10}, {2: 1, 0: 5, 1: 1})
    for position, row in alone.logits[0].items():
        torch.testing.assert_close(company.logits[0][position], row, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "cohere2", "mixtral", "olmo3", "smollm3", "gpt-neox"])
def test_strict_gives_the_tokens_of_off(family: str) -> None:
    target = make_model(family, tie_word_embeddings=False)
    with torch.no_grad():
        target.get_output_embeddings().weight.mul_(4)  # far apart, so that the text varies
    target.requires_grad_(False)
    runtime = make_runtime(target, noisy_copy(target, 0.01))
    prompts = [random_prompt(n, seed=n) for n in (5, 19, 40)]
    plain = [make_request(p, request_id=str(i), ignore_eos=True) for i, p in enumerate(prompts)]
    strict = [
        make_request(p, request_id=str(i), ignore_eos=True, verifier=StrictParams(), drafter=d, num_draft_tokens=6)
        for i, (p, d) in enumerate(zip(prompts, ["model", "multilevel", "prompt_lookup"], strict=True))
    ]
    expected, got = outputs(runtime, plain), outputs(runtime, strict)
    for request, one, other in zip(plain, expected, got, strict=True):
        assert one == other or excused(runtime.target, request, one, other, rows=7)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("qwen2-moe", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}, "sliding window"),
        ("gemma2", {"layer_types": ["chunked_attention", "full_attention"]}, "chunked_attention"),
        ("llama", {"per_layer_config": {"1": {"num_key_value_heads": 1}}}, "differ"),
        (
            "gemma3",
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                }
            },
            "'dynamic'",
        ),
        ("phi3", {"rope_parameters": {**_LONGROPE, "rope_theta": 1e4}}, "'longrope'"),
    ],
)
def test_what_would_be_run_wrongly_is_refused(family: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    save_model(tmp_path, family)
    load_model(tmp_path, "float32")
    edit_json(tmp_path / "config.json", **changes)
    if "use_sliding_window" in changes:
        edit_json(tmp_path / "config.json", layer_types=None)
    with pytest.raises(UnsupportedModel, match=words):
        load_model(tmp_path, "float32")


def test_a_config_that_lacks_something_is_a_damaged_file(tmp_path: Path) -> None:
    save_model(tmp_path, "phi3")
    edit_json(tmp_path / "config.json", rope_parameters={"rope_type": "longrope", "rope_theta": 1e4})
    with pytest.raises(InvalidModelFile, match="short_factor"):
        load_model(tmp_path, "float32")


@pytest.mark.parametrize("family", ["llama", "gemma3", "glm4-moe"])
def test_a_bfloat16_checkpoint_keeps_its_bits(family: str, tmp_path: Path) -> None:
    oracle = make_model(family).to(torch.bfloat16)
    oracle.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, "bfloat16")
    assert loaded.dtype == torch.bfloat16
    kept = loaded.model._keep_in_fp32_modules_strict
    for name, value in oracle.named_parameters():
        mine = loaded.model.get_parameter(name)
        assert mine.dtype == (torch.float32 if any(name.endswith(part) for part in kept) else torch.bfloat16), name
        assert torch.equal(mine.to(torch.bfloat16), value), name


def forward_of_one(folder: Path, weights: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [1, 20] of a text fed in two pieces, and the logits [20, vocab] of its rows."""
    runner = ModelRunner(load_model(folder, weights), BLOCKS, BLOCK)  # type: ignore[arg-type]
    replay = Replay(runner, [20], True)
    replay.round({0: 15}, {0: 15})
    replay.round({0: 5}, {0: 5})
    return torch.tensor(replay.tokens), torch.stack([replay.logits[0][p] for p in range(20)])
