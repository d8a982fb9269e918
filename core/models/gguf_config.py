"""config.json's content from a GGUF file's metadata; what we would run wrongly is refused."""

from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from core.models.errors import InvalidModelFile, UnsupportedModel
from core.models.special_tokens import END_OF_TURN

ROPE_FREQS = "rope_freqs.weight"
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def model_config(reader: GGUFReader, fields: dict[str, Any]) -> dict[str, Any]:
    """config.json's content; refuses what we would run wrongly."""
    arch = str(fields.get("general.architecture"))
    if arch not in _ARCHITECTURES:
        raise UnsupportedModel(
            f"GGUF architecture {arch!r} is not supported; supported are {', '.join(_ARCHITECTURES)}"
        )
    if fields.get(f"{arch}.expert_count"):
        raise UnsupportedModel(f"{arch} with experts (mixture of experts) is not supported")

    def get(key: str, default: Any = None) -> Any:
        value = fields.get(f"{arch}.{key}", default)
        if value is None:
            raise InvalidModelFile(f"the GGUF lacks {arch}.{key}")
        return value

    shapes = {tensor.name: [int(n) for n in reversed(tensor.shape)] for tensor in reader.tensors}
    if "token_embd.weight" not in shapes:
        raise InvalidModelFile("the GGUF lacks token_embd.weight")
    heads, hidden = get("attention.head_count"), get("embedding_length")
    head_dim = get("attention.key_length", hidden // heads)
    eos = _end_ids(fields)
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[arch]],
        "model_type": arch,
        "vocab_size": shapes["token_embd.weight"][0],
        "hidden_size": hidden,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": float(f"{get('attention.layer_norm_rms_epsilon'):.6g}"),
        "max_position_embeddings": get("context_length"),
        "rope_theta": float(get("rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in shapes,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": eos,
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float16",
    }
    scaling = _rope_scaling(reader, fields, arch, head_dim, config["rope_theta"])
    if scaling is not None:
        config["rope_scaling"] = scaling
    if get("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModel("partial rotary embeddings are not supported")
    return config


def _end_ids(fields: dict[str, Any]) -> list[int]:
    """Every id that ends an answer: EOS first, then end-of-turn and other known end tokens."""
    named = [fields.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    tokens, types = fields.get("tokenizer.ggml.tokens", []), fields.get("tokenizer.ggml.token_type", [])
    known = [
        i for i, (token, kind) in enumerate(zip(tokens, types, strict=False)) if kind == 3 and token in END_OF_TURN
    ]
    return list(dict.fromkeys(int(i) for i in [*named, *known] if i is not None))


def _rope_scaling(
    reader: GGUFReader, fields: dict[str, Any], arch: str, head_dim: int, theta: float
) -> dict[str, Any] | None:
    kind = fields.get(f"{arch}.rope.scaling.type", "none")
    freqs = next((t for t in reader.tensors if t.name == ROPE_FREQS), None)
    if freqs is not None:
        return _llama3_scaling(np.asarray(freqs.data, dtype=np.float32), head_dim, theta)
    if kind == "linear":
        factor = fields.get(f"{arch}.rope.scaling.factor")
        if factor is None:
            raise InvalidModelFile("the GGUF names linear rope scaling without a factor")
        return {"rope_type": "linear", "factor": float(factor)}
    if kind != "none":
        raise UnsupportedModel(f"rope scaling {kind!r} is not supported; supported are none, linear and llama3")
    return None


def _llama3_scaling(factors: npt.NDArray[np.float32], head_dim: int, theta: float) -> dict[str, Any]:
    """Llama 3.1 stores per-frequency divisors, not the parameters; find the published ones that give them."""
    low, high, original = 1.0, 4.0, 8192
    wavelength = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (original / wavelength - low) / (high - low)
    for factor in (8.0, 32.0, 16.0, 4.0):
        between = 1 / ((1 - smooth) / factor + smooth)
        expected = np.where(wavelength < original / high, 1.0, np.where(wavelength > original / low, factor, between))
        if np.allclose(expected, factors, rtol=1e-3):
            names = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": original}
            return {"rope_type": "llama3", "factor": factor, **names}
    raise UnsupportedModel("the GGUF's rope_freqs match no published Llama 3 scaling")
