"""Tiny configurations of every supported architecture, and of the settings that change what a forward computes."""

from typing import Any

# Two layers of which one sees a window, so that both kinds meet in one forward.
_MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
# DeepSeek's way: one dense layer, then routed experts in groups beside a shared one.
_GROUPED_EXPERTS = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
_MULTIPLIERS = {
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.5,
    "embedding_multiplier": 3.0,
    "logits_scaling": 4.0,
}
_LLAMA3_ROPE = {
    "rope_theta": 10000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_PLAIN_ROPE = {"rope_theta": 500.0, "rope_type": "default"}

# name -> (architecture, what its config has beside tiny.SHAPE)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "afmoe": ("AfmoeForCausalLM", {**_EXPERTS, **_MIXED, "num_dense_layers": 1, "head_dim": 16}),
    "apertus": ("ApertusForCausalLM", {"rope_parameters": _LLAMA3_ROPE}),
    "arcee": ("ArceeForCausalLM", {}),
    "cohere": ("CohereForCausalLM", {"logit_scale": 0.25}),
    "cohere-norms": ("CohereForCausalLM", {"logit_scale": 0.25, "use_qk_norm": True}),
    "cohere2": ("Cohere2ForCausalLM", _MIXED),
    "cwm": (
        "CwmForCausalLM",
        {**_MIXED, "head_dim": 16, "rope_parameters": _LLAMA3_ROPE, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "dots1": ("Dots1ForCausalLM", {**_GROUPED_EXPERTS, **_MIXED}),
    "ernie4.5": ("Ernie4_5ForCausalLM", {}),
    "ernie4.5-moe": ("Ernie4_5_MoeForCausalLM", {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 48}),
    "exaone4": ("Exaone4ForCausalLM", _MIXED),
    "exaone4-full": ("Exaone4ForCausalLM", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "flex-olmo": ("FlexOlmoForCausalLM", _EXPERTS),
    "gemma": ("GemmaForCausalLM", {"head_dim": 32}),
    "gemma-one-key-head": ("GemmaForCausalLM", {"head_dim": 32, "num_key_value_heads": 1}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {
            **_MIXED,
            "head_dim": 32,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 7.0,
        },
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {
            **_MIXED,
            "head_dim": 32,
            "rope_parameters": {
                "full_attention": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 8.0},
                "sliding_attention": _PLAIN_ROPE,
            },
        },
    ),
    "glm": ("GlmForCausalLM", {"head_dim": 32, "attention_bias": True}),
    "glm4": ("Glm4ForCausalLM", {"head_dim": 32}),
    "glm4-moe": ("Glm4MoeForCausalLM", {**_GROUPED_EXPERTS, "head_dim": 32, "use_qk_norm": True}),
    "gpt2": ("GPT2LMHeadModel", {"num_key_value_heads": 4, "scale_attn_by_inverse_layer_idx": True}),
    "gpt-neox": ("GPTNeoXForCausalLM", {"num_key_value_heads": 4}),
    "gpt-neox-serial": ("GPTNeoXForCausalLM", {"num_key_value_heads": 4, "use_parallel_residual": False}),
    "granite": ("GraniteForCausalLM", _MULTIPLIERS),
    "granite-moe": ("GraniteMoeForCausalLM", {**_MULTIPLIERS, **_LOCAL_EXPERTS}),
    "helium": ("HeliumForCausalLM", {"head_dim": 16}),
    "hunyuan": ("HunYuanDenseV1ForCausalLM", {"head_dim": 16}),
    "hunyuan-alpha-rope": (
        "HunYuanDenseV1ForCausalLM",
        {
            "head_dim": 16,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0},
            "max_position_embeddings": 16,
        },
    ),
    "hyperclovax": ("HyperCLOVAXForCausalLM", _MULTIPLIERS),
    "jais2": ("Jais2ForCausalLM", {}),
    "llama": ("LlamaForCausalLM", {}),
    "llama-bias": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama-yarn-rope": ("LlamaForCausalLM", {"rope_parameters": _YARN_ROPE}),
    "llama3-rope": ("LlamaForCausalLM", {"rope_parameters": _LLAMA3_ROPE}),
    "mellum": (
        "MellumForCausalLM",
        {
            **_EXPERTS,
            **_MIXED,
            "rope_parameters": {"full_attention": _YARN_ROPE, "sliding_attention": _PLAIN_ROPE},
        },
    ),
    "minimax-m2": ("MiniMaxM2ForCausalLM", {**_LOCAL_EXPERTS, "head_dim": 16}),
    "ministral": ("MinistralForCausalLM", {**_MIXED, "head_dim": 16}),
    "ministral3": (
        "Ministral3ForCausalLM",
        {"head_dim": 16, "rope_parameters": {**_YARN_ROPE, "llama_4_scaling_beta": 0.5}},
    ),
    "ministral3-beyond": (
        "Ministral3ForCausalLM",
        {
            "head_dim": 16,
            "rope_parameters": {**_YARN_ROPE, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.5},
        },
    ),
    "mistral": ("MistralForCausalLM", {"sliding_window": None}),
    "mistral-window": ("MistralForCausalLM", {"sliding_window": 5}),
    "mixtral": ("MixtralForCausalLM", {**_LOCAL_EXPERTS, "sliding_window": None}),
    "mixtral-window": ("MixtralForCausalLM", {**_LOCAL_EXPERTS, "sliding_window": 5}),
    "nanochat": ("NanoChatForCausalLM", {"final_logit_softcapping": 4.0}),
    "olmo": ("OlmoForCausalLM", {"clip_qkv": 1.0}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo3": ("Olmo3ForCausalLM", _MIXED),
    "olmoe": ("OlmoeForCausalLM", {**_EXPERTS, "clip_qkv": 1.0, "norm_topk_prob": True}),
    "opt": (
        "OPTForCausalLM",
        {"num_key_value_heads": 4, "ffn_dim": 96, "word_embed_proj_dim": 48, "do_layer_norm_before": True},
    ),
    "opt-norms-behind": (
        "OPTForCausalLM",
        {"num_key_value_heads": 4, "ffn_dim": 96, "word_embed_proj_dim": 64, "do_layer_norm_before": False},
    ),
    "persimmon": ("PersimmonForCausalLM", {"num_key_value_heads": 4}),
    "phi": ("PhiForCausalLM", {"qk_layernorm": True}),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": None}),
    "phi3-window": ("Phi3ForCausalLM", {"sliding_window": 5, "partial_rotary_factor": 0.5}),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        {**_EXPERTS, "shared_expert_intermediate_size": 40, "mlp_only_layers": [1]},
    ),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "qwen3-moe": ("Qwen3MoeForCausalLM", {**_EXPERTS, "head_dim": 32, "norm_topk_prob": True}),
    "qwen3-moe-window": (
        "Qwen3MoeForCausalLM",
        {**_EXPERTS, "head_dim": 32, "use_sliding_window": True, "sliding_window": 6},
    ),
    "seed-oss": ("SeedOssForCausalLM", {"head_dim": 32}),
    "smollm3": ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}),
    "smollm3-window": (
        "SmolLM3ForCausalLM",
        {**_MIXED, "no_rope_layers": [1, 0], "use_sliding_window": True},
    ),
    "solar-open": ("SolarOpenForCausalLM", _GROUPED_EXPERTS),
    "starcoder2": ("Starcoder2ForCausalLM", {"sliding_window": 6}),
    "vaultgemma": (
        "VaultGemmaForCausalLM",
        {**_MIXED, "head_dim": 32, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 7.0},
    ),
}
