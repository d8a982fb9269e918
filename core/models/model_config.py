"""A model's config.json: read, checked against what runs here, and built into a model without memory."""

from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from core.models.architectures import SUPPORTED, model_class
from core.models.errors import InvalidModelFile, UnsupportedModel
from core.models.special_tokens import read_json

# Rotary embeddings whose frequencies are fixed when the model is made. "dynamic" and "longrope" choose them
# anew in each forward by the highest position in it (transformers' dynamic_rope_update), so in a flat batch
# a long neighbour would turn everybody's keys.
FIXED_ROPE = ("default", "linear", "llama3", "yarn", "ntk_alpha")

# transformers' way to run experts that adds up each row's own terms in the order of its choices.
EXPERTS = "grouped_mm"

# Families whose config.json states the real length as model_max_length; their rotary embedding has no table to end.
_LENGTH_BESIDE = ("cohere", "cohere2")


def read_config(folder: Path) -> Any:
    """transformers' config object, of an architecture we have proved. UnsupportedModel for any other."""
    values = read_json(folder / "config.json")
    if not values:
        raise InvalidModelFile(f"{folder} has no config.json")
    return parse_config(values)


def parse_config(values: dict[str, Any]) -> Any:
    """The same from config.json's values."""
    architecture = next(iter(values.get("architectures") or []), None)
    if architecture not in SUPPORTED:
        raise UnsupportedModel(f"architecture {architecture!r} is not supported; supported are {', '.join(SUPPORTED)}")
    if values.get("quantization_config"):
        raise UnsupportedModel("quantised checkpoints are not supported: use the original weights, or a GGUF file")
    try:
        config = config_class(architecture).from_dict(values)
    except (StrictDataclassError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidModelFile(f"config.json is no {architecture}'s: {error}") from error
    _check_layers(config, architecture)
    for rope in _rope_types(config):
        if rope not in FIXED_ROPE:
            raise UnsupportedModel(f"rope type {rope!r} is not supported; supported are {', '.join(FIXED_ROPE)}")
    return config


def config_class(architecture: str) -> Any:
    """transformers' class of a supported architecture's config."""
    return model_class(architecture).config_class


def _check_layers(config: Any, architecture: str) -> None:
    """Layers we would run wrongly: of a kind or a shape of their own, or with a window that is no argument of the
    attention call but lives in a mask we do not use."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if strange := kinds - {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(f"{architecture} with layers of type {', '.join(sorted(strange))} is not supported")
    if config.is_heterogeneous:
        raise UnsupportedModel("layers that differ in their shapes are not supported")
    windowed = "sliding_attention" in kinds if kinds else getattr(config, "sliding_window", None) is not None
    if windowed and not SUPPORTED[architecture].window:
        raise UnsupportedModel(f"{architecture} with a sliding window is not supported")


def _rope_types(config: Any) -> set[str]:
    """The kinds of rotary embedding in use: none, one, or one for each type of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [value for value in parameters.values() if isinstance(value, dict)]
    return {_rope_type(each, config.model_type) for each in by_layer_type or [parameters] if each}


def _rope_type(parameters: dict[str, Any], model_type: str) -> str:
    kind = str(parameters.get("rope_type"))
    # Hunyuan's configs say "dynamic", but with an alpha its frequencies are fixed by that.
    fixed = kind == "dynamic" and model_type == "hunyuan_v1_dense" and parameters.get("alpha")
    return "ntk_alpha" if fixed else kind


def max_context(config: Any, tokenizer_limit: int | None = None) -> int:
    """Positions the model was made for. tokenizer_limit: model_max_length of tokenizer_config.json, if it has one.

    max_position_embeddings, unless a scaled rotary embedding goes further: yarn's factor counts from the length
    it was trained at. linear's counts from max_position_embeddings in some configs (Vicuna 16k: 4096 and 4) and
    is contained in it in others (DeepSeek Coder: 16384 and 4), which the tokenizer's limit tells apart. Where
    each type of layer has its own rotary embedding, max_position_embeddings speaks for all of them. Command R
    states 8192 and, as model_max_length in config.json, the 131072 it was trained for.
    """
    stated = int(config.max_position_embeddings)
    rope = getattr(config, "rope_parameters", None) or {}
    kind, factor = rope.get("rope_type"), float(rope.get("factor") or 1.0)
    if kind == "yarn":
        return max(stated, int(rope["original_max_position_embeddings"] * factor))
    if kind == "linear":
        extended = round(stated * factor)
        return max(stated, min(extended, tokenizer_limit or extended))
    if config.model_type in _LENGTH_BESIDE:
        return max(stated, int(getattr(config, "model_max_length", None) or 0))
    return stated


def empty_model(config: Any) -> Any:
    """The model on torch's meta device: shapes without memory, parameters and buffers alike."""
    with torch.device("meta"):
        model = model_class(config.architectures[0])(config)
    if model._can_set_experts_implementation():
        model.set_experts_implementation(EXPERTS)
    return model
