"""convert_gguf: a GGUF file becomes a Hugging Face style folder, once; later starts read the folder.

Weights are dequantised to half precision (norms and biases stay float32) and renamed; config.json,
generation_config.json and the tokenizer are written from the file's metadata. The folder appears
complete or not at all: everything is written beside it and renamed at the end.

llama.cpp's llama layout interleaves the two halves of each rotary pair; Hugging Face keeps them apart.
Worked example, head_dim 4, one head: rows [0, 1, 2, 3] there are [0, 2, 1, 3] here.
"""

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor, dequantize
from safetensors import SafetensorError
from safetensors.numpy import save_file

from core.models.errors import InvalidModelFile, UnsupportedModel
from core.models.gguf_config import ROPE_FREQS, model_config
from core.models.gguf_tokenizer import write_tokenizer

_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_SHARD_BYTES = 1 << 30
_ELEMENTS_AT_ONCE = 1 << 22  # dequantised in one piece: 16 MiB of float32

Array = npt.NDArray[Any]


def convert_gguf(gguf: Path, out: Path) -> Path:
    """Convert `gguf` into the folder `out` and return it.

    UnsupportedModel if the architecture, rope scaling or tokenizer is not one we know;
    InvalidModelFile if the file is truncated or no GGUF; FileExistsError if `out` is there already.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists already")
    reader, fields = _open(gguf)
    config = model_config(reader, fields)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    try:
        partial.chmod(0o755)  # made for the owner alone
        _write_json(partial / "config.json", config)
        _write_json(partial / "generation_config.json", _generation_config(config))
        write_tokenizer(fields, partial)
        _write_weights(reader, config, partial)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def _open(gguf: Path) -> tuple[GGUFReader, dict[str, Any]]:
    """The reader and the metadata as plain values."""
    try:
        reader = GGUFReader(gguf)
        fields = {key: field.contents() for key, field in reader.fields.items()}
    except FileNotFoundError:
        raise
    except Exception as error:  # the reader has no error of its own: numpy's slicing tells what it tells
        raise InvalidModelFile(f"{gguf} is not a complete GGUF file: {error}") from error
    size = gguf.stat().st_size
    for tensor in reader.tensors:
        if tensor.data_offset + tensor.n_bytes > size:
            raise InvalidModelFile(f"{gguf} is truncated: tensor {tensor.name} lies beyond its end")
    return reader, fields


def _generation_config(config: dict[str, Any]) -> dict[str, Any]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: config[name] for name in names if config[name] is not None}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}, indent=2), "utf-8")


def _write_weights(reader: GGUFReader, config: dict[str, Any], folder: Path) -> None:
    """Shards of about a gigabyte, so that memory holds one shard, never the model."""
    named = _rename(reader, config)
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in named.items():
        if size and size + 2 * int(tensor.n_elements) > _SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += 2 * int(tensor.n_elements)
    index: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else "model.safetensors"
        _save({name: _convert(name, named[name], config) for name in names}, folder / file)
        index.update(dict.fromkeys(names, file))
    if len(shards) > 1:
        total = sum((folder / file).stat().st_size for file in set(index.values()))
        value = {"metadata": {"total_size": total}, "weight_map": index}
        _write_json(folder / "model.safetensors.index.json", value)


def _save(tensors: dict[str, Array], path: Path) -> None:
    try:
        save_file(tensors, path, {"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error
    path.chmod(0o644)  # made for the owner alone


def _rename(reader: GGUFReader, config: dict[str, Any]) -> dict[str, ReaderTensor]:
    """Hugging Face name -> GGUF tensor; refuses tensors we have no place for and gaps."""
    named: dict[str, ReaderTensor] = {}
    for tensor in reader.tensors:
        match = _LAYER_TENSOR.fullmatch(tensor.name)
        if tensor.name in _OUTER_NAMES:
            named[_OUTER_NAMES[tensor.name]] = tensor
        elif match and match[2] in _LAYER_NAMES:
            named[f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"] = tensor
        elif tensor.name != ROPE_FREQS:
            raise UnsupportedModel(f"no place for the GGUF's tensor {tensor.name} in {config['architectures'][0]}")
    missing = _expected_names(config) ^ named.keys()
    if missing:
        raise InvalidModelFile(f"tensors missing or out of place: {', '.join(sorted(missing)[:5])}")
    return named


def _expected_names(config: dict[str, Any]) -> set[str]:
    parts = [f"{name}.weight" for stem, name in _LAYER_NAMES.items() if stem not in ("attn_q_norm", "attn_k_norm")]
    if config["model_type"] == "qwen2":
        parts += [f"self_attn.{name}_proj.bias" for name in "qkv"]
    if config["model_type"] == "qwen3":
        parts += ["self_attn.q_norm.weight", "self_attn.k_norm.weight"]
    names = {f"model.layers.{layer}.{part}" for layer in range(config["num_hidden_layers"]) for part in parts}
    names |= {"model.embed_tokens.weight", "model.norm.weight"}
    return names if config["tie_word_embeddings"] else names | {"lm_head.weight"}


def _convert(name: str, tensor: ReaderTensor, config: dict[str, Any]) -> Array:
    """One tensor: float16 [out, in], or float32 [n] for norms and biases."""
    if len(tensor.shape) == 1:
        return np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    out = np.empty([int(n) for n in reversed(tensor.shape)], dtype=np.float16)
    step = max(1, _ELEMENTS_AT_ONCE // out.shape[1])
    for start in range(0, len(out), step):
        out[start : start + step] = dequantize(tensor.data[start : start + step], tensor.tensor_type)
    if not np.isfinite(out).all():
        raise UnsupportedModel(f"{tensor.name} holds values beyond half precision")
    if config["model_type"] == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config["num_attention_heads" if name.endswith("q_proj.weight") else "num_key_value_heads"]
        return separate_rotary_halves(out, heads)
    return out


def separate_rotary_halves(weight: Array, heads: int) -> Array:
    """From llama.cpp's interleaved rotary rows to Hugging Face's halves; see the module's example."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)
