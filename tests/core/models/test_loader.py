"""load_model: right weights, right special ids, and clear refusals."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from core.models import loader
from core.models.loader import InvalidModelFile, UnsupportedModel, fingerprint, load_model
from core.models.packed_linear import PACKED, WeightKind
from tests.core.models.tiny import FAMILIES, edit_json, save_model


@pytest.mark.parametrize("family", FAMILIES)
def test_buffers_and_weights_are_what_transformers_loads(family: str, tmp_path: Path) -> None:
    oracle = save_model(tmp_path, family)
    loaded = load_model(tmp_path, "float32", name="mine")
    expected = dict(oracle.named_parameters()) | dict(oracle.named_buffers())
    actual = dict(loaded.model.named_parameters()) | dict(loaded.model.named_buffers())
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name
    assert not any(value.is_meta or value.requires_grad for value in actual.values())
    assert (loaded.name, loaded.vocab_size, loaded.weights) == ("mine", 199, "float32")
    assert loaded.max_context == oracle.config.max_position_embeddings
    assert not loaded.model.training


def test_sharded_checkpoints_load(tmp_path: Path) -> None:
    oracle = save_model(tmp_path / "whole", "llama")
    oracle.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    assert (tmp_path / "shards/model.safetensors.index.json").exists()
    loaded = load_model(tmp_path / "shards", "float32")
    for name, value in oracle.named_parameters():
        assert torch.equal(loaded.model.get_parameter(name), value), name


def test_a_tied_head_shares_the_table(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen2", tie_word_embeddings=True)
    model = load_model(tmp_path, "bfloat16").model
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("weights", PACKED)
def test_packed_heads_follow_the_tie(weights: str, tied: bool, tmp_path: Path) -> None:
    oracle = save_model(tmp_path, "llama", tie_word_embeddings=tied)
    loaded = load_model(tmp_path, weights)  # type: ignore[arg-type]
    x = torch.randn(3, 64)
    expected = oracle.lm_head(x)
    assert (loaded.model.lm_head(x) - expected).norm() < 0.03 * expected.norm()
    assert loaded.model.model.embed_tokens.weight.dtype == torch.float16
    assert not any(isinstance(module, torch.nn.Linear) for module in loaded.model.modules())


def test_a_cpu_without_packed_kernels_falls_back_to_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(tmp_path, "llama")
    monkeypatch.setattr(loader, "packing_available", lambda: False)
    loaded = load_model(tmp_path, "int8")
    assert loaded.weights == "float32"
    assert "int8" in caplog.text


def test_end_and_control_tokens_are_the_union_of_all_files(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen2", eos_token_id=10)
    tokenizer = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    names = ["<|im_end|>", "<|image_pad|>", "<|endoftext|>"]
    tokenizer.add_tokens([AddedToken(name, special=True) for name in names])
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [10, 11]}))
    loaded = load_model(tmp_path, "float32")
    assert loaded.eos_token_ids == {10, 11, 1, 3}
    assert loaded.control_token_ids == {10, 11, 1, 2, 3}


def test_unproved_architectures_are_refused_by_name(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    edit_json(tmp_path / "config.json", architectures=["GPTBigCodeForCausalLM"])
    with pytest.raises(UnsupportedModel, match=r"GPTBigCodeForCausalLM.*LlamaForCausalLM"):
        load_model(tmp_path, "float32")
    edit_json(tmp_path / "config.json", architectures=["LlamaForCausalLM"], quantization_config={"bits": 4})
    with pytest.raises(UnsupportedModel, match="quantised"):
        load_model(tmp_path, "float32")


ROPES: dict[str, dict[str, object]] = {
    "default": {},
    "linear": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "dynamic": {"factor": 2.0},
    "longrope": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 8,
        "long_factor": [3.0] * 8,
    },
}


@pytest.mark.parametrize("rope", ROPES)
def test_a_rotary_embedding_that_depends_on_the_batch_is_refused_by_name(rope: str, tmp_path: Path) -> None:
    """Accepted are exactly those that give a position the same angles beside short and long neighbours."""
    oracle = save_model(tmp_path, "llama", rope_scaling={"rope_type": rope, **ROPES[rope]})
    rotary = oracle.model.rotary_emb
    x = torch.zeros(1, 1)
    alone = rotary(x, torch.arange(40)[None])[0]
    beside = rotary(x, torch.arange(400)[None])[0][:, :40]
    if torch.equal(alone, beside):
        assert torch.equal(load_model(tmp_path, "float32").model.model.rotary_emb.inv_freq, rotary.inv_freq)
    else:
        with pytest.raises(UnsupportedModel, match=f"'{rope}' is not supported.*yarn"):
            load_model(tmp_path, "float32")
    assert torch.equal(alone, beside) == (rope not in ("dynamic", "longrope"))


def test_an_old_name_of_the_rope_type_is_understood(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    values = json.loads((tmp_path / "config.json").read_text())
    values.pop("rope_parameters", None)
    values["rope_scaling"] = {"type": "dynamic", "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UnsupportedModel, match="'dynamic'"):
        load_model(tmp_path, "float32")


def test_incomplete_or_damaged_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelFile, match=r"config\.json"):
        load_model(tmp_path, "float32")
    save_model(tmp_path, "llama")
    file = tmp_path / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}  # the file changes below
    whole = file.read_bytes()

    def complains(words: str) -> None:
        with pytest.raises(InvalidModelFile, match=words):
            load_model(tmp_path, "float32")

    file.write_bytes(whole[: len(whole) // 2])
    complains("cannot read")
    save_file({k: v for k, v in tensors.items() if "layers.1.mlp.up_proj" not in k}, file)
    complains(r"lacks the weight model\.layers\.1\.mlp\.up_proj\.weight")
    save_file({**tensors, "model.norm.weight": torch.ones(3)}, file)
    complains("shape")
    save_file({**tensors, "model.layers.0.self_attn.q_norm.weight": torch.ones(3)}, file)
    complains("without a place")
    file.unlink()
    complains("cannot read")
    (tmp_path / "config.json").write_text("{")
    complains("not JSON")


@pytest.mark.parametrize("weights", ["int8_split", "int8"])
def test_int8_is_for_cpus(weights: WeightKind, tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    with pytest.raises(ValueError, match=f"^{weights} weights need the CPU"):
        load_model(tmp_path, weights, device="meta")


def test_fingerprints_follow_the_content(tmp_path: Path) -> None:
    save_model(tmp_path / "a", "llama")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")
    file = tmp_path / "b/model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2 + 5] ^= 1
    file.write_bytes(content)
    assert fingerprint(tmp_path / "a") != fingerprint(tmp_path / "b")


def test_a_scaled_rotary_embedding_lengthens_the_context(tmp_path: Path) -> None:
    save_model(tmp_path, "llama", max_position_embeddings=64, rope_scaling={"rope_type": "linear", "factor": 4.0})
    assert load_model(tmp_path, "float32").max_context == 256
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 128}))
    assert load_model(tmp_path, "float32").max_context == 128
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 1e30}))
    assert load_model(tmp_path, "float32").max_context == 256


@pytest.mark.parametrize(("family", "warned"), [("gemma2", True), ("llama", False)])
def test_fp16_where_activations_leave_its_range_brings_a_warning(
    family: str, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "resolve_weights", lambda weights, device: (weights, torch.float16))
    save_model(tmp_path, family)
    load_model(tmp_path, "float32", name="mine")
    assert ("mine is known to overflow in fp16" in caplog.text) == warned
