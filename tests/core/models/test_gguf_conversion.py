"""convert_gguf: a tiny GGUF written here becomes a folder that computes and tokenises the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quantize
from transformers import AutoTokenizer, PreTrainedModel

from core.models.errors import InvalidModelFile, UnsupportedModel
from core.models.gguf_conversion import convert_gguf
from core.models.loader import load_model
from tests.core.models.tiny import make_model

# The inverse of the converter's table, written out: what llama.cpp calls each weight.
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in OUTER:
        return f"{OUTER[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's rotary layout, row by row: new row 2i is row i of the head, new row 2i+1 row i + dim/2."""
    dim = len(weight) // heads
    order = [h * dim + half * dim // 2 + i for h in range(heads) for i in range(dim // 2) for half in (0, 1)]
    return weight[order]


def write_gguf(path: Path, model: PreTrainedModel, arch: str, fields: dict[str, Any], **extra: np.ndarray) -> None:
    config = model.config
    writer = GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    for key, value in fields.items():
        {list: writer.add_array, int: writer.add_uint32, str: writer.add_string, bool: writer.add_bool}[type(value)](
            key, value
        )
    for name, parameter in model.named_parameters():
        value = parameter.detach().numpy()
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            value = interleave(value, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        if value.ndim == 1:
            writer.add_tensor(gguf_name(name), value)
        else:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name(name), quantize(value, kind), raw_dtype=kind)
    for name, value in extra.items():
        writer.add_tensor(name.replace("__", "."), value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def vocabulary(pre: str, size: int = 320) -> dict[str, Any]:
    """All byte letters, a few merges, one user-defined and three control tokens, padded by unused rows."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in visible] + [chr(256 + i) for i in range(256 - len(visible))]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "Ã ©"]
    tokens = letters + [merge.replace(" ", "") for merge in merges]
    types = [1] * len(tokens)
    for token, kind in (("<|im_start|>", 3), ("<|im_end|>", 3), ("<|endoftext|>", 3), ("<tool_call>", 4)):
        tokens.append(token)
        types.append(kind)
    while len(tokens) < size:
        tokens.append(f"[PAD{len(tokens)}]")
        types.append(5)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }


def as_stored(model: PreTrainedModel) -> None:
    """Give matrices the values that 8-bit quantisation and half precision leave: what the folder holds."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            kind = GGMLQuantizationType.Q8_0
            stored = dequantize(quantize(parameter.detach().numpy(), kind), kind).astype(np.float16)
            parameter.data = torch.from_numpy(stored.astype(np.float32))


@pytest.mark.parametrize(
    ("family", "arch", "tied"), [("llama", "llama", True), ("qwen2", "qwen2", False), ("qwen3", "qwen3", True)]
)
def test_the_folder_computes_what_the_gguf_holds(family: str, arch: str, tied: bool, tmp_path: Path) -> None:
    model = make_model(family, vocab_size=320, tie_word_embeddings=tied, head_dim=16)
    write_gguf(tmp_path / "m.gguf", model, arch, vocabulary("qwen2"))
    as_stored(model)
    out = convert_gguf(tmp_path / "m.gguf", tmp_path / "m")
    loaded = load_model(out, "float32")
    ids = torch.tensor([[1, 50, 260, 7, 8]])
    with torch.no_grad():
        expected = model(ids).logits
        actual = loaded.model(ids).logits
    torch.testing.assert_close(actual, expected, atol=2e-4, rtol=2e-4)
    assert loaded.config.tie_word_embeddings is tied
    tokens = vocabulary("qwen2")["tokenizer.ggml.tokens"]
    assert loaded.eos_token_ids == {tokens.index("<|im_end|>"), tokens.index("<|endoftext|>")}
    assert loaded.control_token_ids == loaded.eos_token_ids | {tokens.index("<|im_start|>")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "m.gguf"]


def test_llama3_frequencies_become_their_published_scaling(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = make_model("llama", vocab_size=320, rope_scaling=scaling)
    plain = make_model("llama", vocab_size=320)
    scaled, inv_freq = model.model.rotary_emb.inv_freq, plain.model.rotary_emb.inv_freq
    factors = (inv_freq / scaled).numpy()
    write_gguf(tmp_path / "m.gguf", model, "llama", vocabulary("llama-bpe"), rope_freqs__weight=factors)
    loaded = load_model(convert_gguf(tmp_path / "m.gguf", tmp_path / "m"), "float32")
    torch.testing.assert_close(loaded.model.model.rotary_emb.inv_freq, scaled)


def convert_tokenizer(tmp_path: Path, pre: str, **fields: Any) -> Any:
    model = make_model("llama", vocab_size=320, num_hidden_layers=1)
    write_gguf(tmp_path / "m.gguf", model, "llama", {**vocabulary(pre), **fields})
    return AutoTokenizer.from_pretrained(convert_gguf(tmp_path / "m.gguf", tmp_path / "m"))


def pieces(tokenizer: Any, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])


def test_smollm_splits_digits_and_keeps_text_as_it_is(tmp_path: Path) -> None:
    tokenizer = convert_tokenizer(tmp_path, "smollm")
    assert pieces(tokenizer, "hello 12 hello") == ["hello", "Ġ", "1", "2", "Ġhello"]
    assert pieces(tokenizer, "e\u0301") == ["e", "Ì", "ģ"]  # no composition
    text = "  I'M 3½ 日本 🙂 e\u0301\r\n\tx "
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_qwen2_splits_digits_and_composes_letters(tmp_path: Path) -> None:
    tokenizer = convert_tokenizer(tmp_path, "qwen2")
    assert pieces(tokenizer, "hello 12 hello") == ["hello", "Ġ", "1", "2", "Ġhello"]
    assert pieces(tokenizer, "e\u0301") == ["Ã©"]
    text = "  I'M 3½ 日本 🙂 é\r\n\tx "
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_llama3_keeps_short_numbers_and_begins_with_bos(tmp_path: Path) -> None:
    tokenizer = convert_tokenizer(tmp_path, "llama-bpe")
    assert pieces(tokenizer, "hello 12") == ["<|im_start|>", "hello", "Ġ", "12"]


def test_control_tokens_are_special_and_tool_tags_stay_visible(tmp_path: Path) -> None:
    tokenizer = convert_tokenizer(tmp_path, "qwen2")
    ids = tokenizer("<|im_start|>hello<tool_call>1<|im_end|>")["input_ids"]
    assert len(ids) == 5
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hello<tool_call>1"
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.decode([319]) == ""  # a row that only pads the embedding
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False) == "hello"


def test_what_we_cannot_run_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    model = make_model("llama", vocab_size=320, num_hidden_layers=1)

    def refuses(error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            convert_gguf(tmp_path / "m.gguf", tmp_path / "m")
        assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]

    write_gguf(tmp_path / "m.gguf", model, "mamba", vocabulary("qwen2"))
    refuses(UnsupportedModel, "'mamba'.*llama, qwen2, qwen3")
    write_gguf(tmp_path / "m.gguf", model, "llama", vocabulary("unheard-of"))
    refuses(UnsupportedModel, "unheard-of")
    write_gguf(tmp_path / "m.gguf", model, "llama", {**vocabulary("qwen2"), "llama.expert_count": 8})
    refuses(UnsupportedModel, "experts")
    write_gguf(tmp_path / "m.gguf", model, "llama", {**vocabulary("qwen2"), "llama.rope.scaling.type": "yarn"})
    refuses(UnsupportedModel, "yarn")
    write_gguf(tmp_path / "m.gguf", model, "llama", vocabulary("qwen2"), blk__0__attn_sinks__weight=np.ones(4, "f4"))
    refuses(UnsupportedModel, "attn_sinks")
    write_gguf(tmp_path / "m.gguf", model, "qwen3", vocabulary("qwen2"))
    refuses(InvalidModelFile, "q_norm|k_norm")
    fields = vocabulary("qwen2")
    del fields["tokenizer.ggml.merges"]
    write_gguf(tmp_path / "m.gguf", model, "llama", fields)
    refuses(InvalidModelFile, "merges")
    with pytest.raises(FileNotFoundError):
        convert_gguf(tmp_path / "absent.gguf", tmp_path / "m")


def test_damaged_files_are_named_and_nothing_is_left(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(file, make_model("llama", vocab_size=320), "llama", vocabulary("qwen2"))
    whole = file.read_bytes()
    for broken in (b"", b"<html>not found</html>" * 99, whole[:100], whole[: len(whole) // 2], whole[:-100]):
        file.write_bytes(broken)
        with pytest.raises(InvalidModelFile, match=r"m\.gguf"):
            convert_gguf(file, tmp_path / "m")
        assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text(json.dumps({"mine": True}))
    with pytest.raises(FileExistsError):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "m")
    assert json.loads((tmp_path / "m/config.json").read_text()) == {"mine": True}
