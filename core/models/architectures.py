"""Which architectures run here, and what a reader should know of each.

An architecture belongs in this table when transformers routes its attention through the interface that
attention.py plugs into, every layer has keys and values of the same shape, and a tiny random model of it
computes here what transformers' own forward computes (tests/core/models/families.py has one at least for
each entry). docs/models.md is written from this table.
"""

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Architecture:
    """module: its package in transformers.models. models: whose checkpoints name it, for people.

    window: layers may see a sliding window. experts: has layers with a mixture of experts. wide: known to
    have activations beyond fp16's largest number, 65,504. notes: what it does beside a plain decoder, for
    people.
    """

    module: str
    models: str
    window: bool = False
    experts: bool = False
    wide: bool = False
    notes: str = ""


# As "architectures" in config.json names them.
SUPPORTED: dict[str, Architecture] = {
    "AfmoeForCausalLM": Architecture(
        "afmoe", "Trinity", window=True, experts=True, notes="gated attention; no rotary in full layers"
    ),
    "ApertusForCausalLM": Architecture("apertus", "Apertus", notes="xIELU; query and key norms"),
    "ArceeForCausalLM": Architecture("arcee", "AFM 4.5B"),
    "Cohere2ForCausalLM": Architecture(
        "cohere2",
        "Command A, Command R7B",
        window=True,
        notes="parallel blocks; scaled logits; no rotary in its full layers",
    ),
    "CohereForCausalLM": Architecture("cohere", "Command R, Aya", notes="parallel blocks; scaled logits"),
    "CwmForCausalLM": Architecture("cwm", "Code World Model", window=True),
    "Dots1ForCausalLM": Architecture("dots1", "dots.llm1", window=True, experts=True, notes="query and key norms"),
    "Ernie4_5ForCausalLM": Architecture("ernie4_5", "ERNIE 4.5"),
    "Ernie4_5_MoeForCausalLM": Architecture("ernie4_5_moe", "ERNIE 4.5 MoE", experts=True),
    "Exaone4ForCausalLM": Architecture(
        "exaone4", "EXAONE 4", window=True, notes="query and key norms; no rotary in full layers"
    ),
    "FlexOlmoForCausalLM": Architecture("flex_olmo", "FlexOlmo", experts=True, notes="query and key norms"),
    "GPT2LMHeadModel": Architecture("gpt2", "GPT-2", notes="learned positions"),
    "GPTNeoXForCausalLM": Architecture("gpt_neox", "Pythia, GPT-NeoX", notes="partial rotary; parallel blocks"),
    "Gemma2ForCausalLM": Architecture(
        "gemma2", "Gemma 2", window=True, wide=True, notes="soft caps on scores and logits"
    ),
    "Gemma3ForCausalLM": Architecture(
        "gemma3", "Gemma 3 270M and 1B", window=True, wide=True, notes="rotary by layer type; query and key norms"
    ),
    "GemmaForCausalLM": Architecture("gemma", "Gemma"),
    "Glm4ForCausalLM": Architecture("glm4", "GLM 4 0414", notes="partial rotary"),
    "Glm4MoeForCausalLM": Architecture(
        "glm4_moe", "GLM 4.5, 4.6", experts=True, notes="partial rotary; extra prediction layers are left out"
    ),
    "GlmForCausalLM": Architecture("glm", "GLM 4 9B", notes="partial rotary"),
    "GraniteForCausalLM": Architecture("granite", "Granite 3", notes="scaled embeddings, residuals, scores and logits"),
    "GraniteMoeForCausalLM": Architecture(
        "granitemoe", "Granite 3 MoE", experts=True, notes="scaled embeddings, residuals, scores and logits"
    ),
    "HeliumForCausalLM": Architecture("helium", "Helium"),
    "HunYuanDenseV1ForCausalLM": Architecture("hunyuan_v1_dense", "Hunyuan 0.5B to 7B", notes="query and key norms"),
    "HyperCLOVAXForCausalLM": Architecture(
        "hyperclovax", "HyperCLOVA X", notes="scaled embeddings, residuals, scores and logits"
    ),
    "Jais2ForCausalLM": Architecture("jais2", "Jais 2"),
    "LlamaForCausalLM": Architecture("llama", "Llama 2, 3.x; DeepSeek-R1-Distill-Llama; SmolLM; Yi"),
    "MellumForCausalLM": Architecture("mellum", "Mellum 2", window=True, experts=True, notes="rotary by layer type"),
    "MiniMaxM2ForCausalLM": Architecture(
        "minimax_m2",
        "MiniMax M2",
        experts=True,
        notes="partial rotary; query and key norms; FP8 as published, so convert it",
    ),
    "Ministral3ForCausalLM": Architecture(
        "ministral3", "Ministral 3 text models", notes="queries scaled by their position"
    ),
    "MinistralForCausalLM": Architecture("ministral", "Ministral 8B", window=True),
    "MistralForCausalLM": Architecture("mistral", "Mistral 7B, Nemo, Small, Large", window=True),
    "MixtralForCausalLM": Architecture("mixtral", "Mixtral", window=True, experts=True),
    "NanoChatForCausalLM": Architecture("nanochat", "nanochat", notes="soft cap on logits; query and key norms"),
    "OPTForCausalLM": Architecture(
        "opt", "OPT", notes="learned positions; published without safetensors, so convert it"
    ),
    "Olmo2ForCausalLM": Architecture("olmo2", "OLMo 2", notes="query and key norms"),
    "Olmo3ForCausalLM": Architecture("olmo3", "OLMo 3", window=True, notes="query and key norms"),
    "OlmoForCausalLM": Architecture("olmo", "OLMo", notes="norms without weights; clipped projections"),
    "OlmoeForCausalLM": Architecture("olmoe", "OLMoE", experts=True, notes="query and key norms"),
    "PersimmonForCausalLM": Architecture("persimmon", "Persimmon", notes="partial rotary; query and key norms"),
    "Phi3ForCausalLM": Architecture("phi3", "Phi 3 4K, Phi 4", window=True, notes="fused projections"),
    "PhiForCausalLM": Architecture("phi", "Phi 1, 1.5, 2", notes="partial rotary; parallel blocks"),
    "Qwen2ForCausalLM": Architecture("qwen2", "Qwen 2, 2.5; QwQ; DeepSeek-R1-Distill-Qwen", window=True),
    "Qwen2MoeForCausalLM": Architecture("qwen2_moe", "Qwen 1.5 MoE, Qwen 2 MoE", experts=True),
    "Qwen3ForCausalLM": Architecture("qwen3", "Qwen 3", window=True, notes="query and key norms"),
    "Qwen3MoeForCausalLM": Architecture(
        "qwen3_moe", "Qwen 3 MoE, Qwen 3 Coder", window=True, experts=True, notes="query and key norms"
    ),
    "SeedOssForCausalLM": Architecture("seed_oss", "Seed-OSS"),
    "SmolLM3ForCausalLM": Architecture("smollm3", "SmolLM 3", window=True, notes="no rotary in some layers"),
    "SolarOpenForCausalLM": Architecture("solar_open", "Solar Open", experts=True),
    "Starcoder2ForCausalLM": Architecture("starcoder2", "StarCoder 2", window=True),
    "VaultGemmaForCausalLM": Architecture(
        "vaultgemma", "VaultGemma", window=True, wide=True, notes="soft caps on scores and logits"
    ),
}


def model_class(architecture: str) -> Any:
    """transformers' class of a supported architecture."""
    module = SUPPORTED[architecture].module
    return getattr(importlib.import_module(f"transformers.models.{module}.modeling_{module}"), architecture)
