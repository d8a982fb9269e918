"""Which architectures run here, and what a reader should know of each."""

import importlib
from typing import Any

# Architectures whose ragged forward is tested against transformers' own -> where transformers keeps them.
SUPPORTED = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def model_class(architecture: str) -> Any:
    """transformers' class of a supported architecture."""
    kind = SUPPORTED[architecture]
    return getattr(importlib.import_module(f"transformers.models.{kind}.modeling_{kind}"), architecture)
