"""Tiny random models, saved as Hugging Face folders."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from core.models.architectures import model_class
from tests.core.models.families import FAMILIES

__all__ = ["FAMILIES", "SHAPE", "edit_json", "make_model", "save_model"]

SHAPE: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def make_model(family: str, **overrides: Any) -> PreTrainedModel:
    """A random model of this family in float32, with transformers' own attention in its plainest form.

    Biases, norms and experts are random too, so that losing one shows.
    """
    architecture, extra = FAMILIES[family]
    cls = model_class(architecture)
    torch.manual_seed(7)
    model: PreTrainedModel = cls(cls.config_class(**{**SHAPE, **extra, **overrides})).eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.dim() < 2:
                tensor.add_(torch.randn_like(tensor) * 0.3)
            elif tensor.std() < SHAPE["initializer_range"] / 2:
                tensor.normal_(0, SHAPE["initializer_range"])  # a matrix the constructor leaves at nothing
    return model


def save_model(folder: Path, family: str, **overrides: Any) -> PreTrainedModel:
    """Save a random model's folder and return the model, the oracle of what the folder computes."""
    model = make_model(family, **overrides)
    model.save_pretrained(folder)
    return model


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
