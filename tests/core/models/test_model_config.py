"""max_context: the positions that published configs mean, each in its own words."""

from typing import Any

import pytest

from core.models.model_config import max_context, parse_config

TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
UNLIMITED = 10**30  # what tokenizers without a limit state

# (model, architecture, what its config.json says of positions, model_max_length of its tokenizer, its context)
PUBLISHED: list[tuple[str, str, dict[str, Any], int | None, int]] = [
    ("Llama 2 7B", "LlamaForCausalLM", {"max_position_embeddings": 4096}, UNLIMITED, 4096),
    (
        "Llama 3.1 8B",
        "LlamaForCausalLM",
        {
            "max_position_embeddings": 131072,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
        131072,
        131072,
    ),
    ("Qwen2.5 7B", "Qwen2ForCausalLM", {"max_position_embeddings": 32768}, 131072, 32768),
    (
        "Qwen2.5 7B with yarn, as its card says",
        "Qwen2ForCausalLM",
        {
            "max_position_embeddings": 32768,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        },
        131072,
        131072,
    ),
    (
        "Qwen3 8B with yarn, as its card says",
        "Qwen3ForCausalLM",
        {
            "max_position_embeddings": 40960,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        },
        131072,
        131072,
    ),
    (
        "OLMo 3, yarn already counted in",
        "Olmo3ForCausalLM",
        {
            "max_position_embeddings": 65536,
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192},
        },
        65536,
        65536,
    ),
    (
        "yarn that counts from the stated length",
        "LlamaForCausalLM",
        {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 32.0}},
        None,
        131072,
    ),
    (
        "Vicuna 1.5 16k, linear counts from the stated length",
        "LlamaForCausalLM",
        {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}},
        16384,
        16384,
    ),
    (
        "the same from a folder whose tokenizer states nothing",
        "LlamaForCausalLM",
        {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}},
        None,
        16384,
    ),
    (
        "DeepSeek Coder 6.7B, linear already counted in",
        "LlamaForCausalLM",
        {"max_position_embeddings": 16384, "rope_scaling": {"type": "linear", "factor": 4.0}},
        16384,
        16384,
    ),
    (
        "Gemma 3 4B's text model, linear in its full layers",
        "Gemma3ForCausalLM",
        {
            "max_position_embeddings": 131072,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
            },
        },
        UNLIMITED,
        131072,
    ),
    (
        "Command R v01",
        "CohereForCausalLM",
        {"max_position_embeddings": 8192, "model_max_length": 131072},
        UNLIMITED,
        131072,
    ),
    ("a tokenizer's limit alone proves nothing", "Qwen2ForCausalLM", {"max_position_embeddings": 2048}, 4096, 2048),
]


@pytest.mark.parametrize(
    ("architecture", "values", "tokenizer_limit", "context"),
    [case[1:] for case in PUBLISHED],
    ids=[case[0] for case in PUBLISHED],
)
def test_the_context_is_what_the_model_was_published_for(
    architecture: str, values: dict[str, Any], tokenizer_limit: int | None, context: int
) -> None:
    config = parse_config({"architectures": [architecture], **TINY, **values})
    assert max_context(config, tokenizer_limit) == context


def test_learned_positions_end_where_their_table_does() -> None:
    assert max_context(parse_config({"architectures": ["GPT2LMHeadModel"], "n_positions": 1024}), 2048) == 1024
