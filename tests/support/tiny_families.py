"""A tiny random model for each family of the matrix: its configuration by the `model_type` of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fakes import bpe_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,  # a prompt with tools has a thousand tokens of this tokenizer
    "initializer_range": 0.2,
}
"""Settings of a family without a row below; a row replaces some settings or adds further ones."""

EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT_ATTENTION: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": 8,
}
LINEAR_ATTENTION: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 4,
    "out_hidden_size": 32,
}
SPARSE_ATTENTION: dict[str, Any] = {"index_topk": 512, "index_head_dim": 8, "index_n_heads": 2}
"""Beyond `index_topk` tokens, the scores of a random indexer tie, and transformers chooses other tokens in each call."""
GEMMA_LAYERS: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
    "vocab_size_per_layer_input": 320,
    "hidden_size_per_layer_input": 8,
}
MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 16}
GPT2_SIZES: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "n_inner": 64}

FAMILIES: dict[str, dict[str, Any]] = {
    "afmoe": {
        **EXPERTS,
        "num_shared_experts": 1,
        "num_dense_layers": 1,
        "global_attn_every_n_layers": 2,
        "sliding_window": 16,
    },
    "apertus": {},
    "arcee": {},
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "biogpt": {},
    "bitnet": {},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "codegen": {**GPT2_SIZES, "rotary_dim": 8, "n_ctx": 512},
    "cohere": {},
    "cohere2": {"sliding_window": 16},
    "cwm": {"sliding_window": 16, "bos_token_id": 0},
    "dbrx": {
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 512,
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
    },
    "deepseek_v2": {**LATENT_ATTENTION, **ROUTED_EXPERTS, "topk_method": "greedy"},
    "deepseek_v3": {**LATENT_ATTENTION, **ROUTED_EXPERTS},
    "deepseek_v32": {**LATENT_ATTENTION, **ROUTED_EXPERTS, **SPARSE_ATTENTION},
    "diffllama": {},
    "dots1": ROUTED_EXPERTS,
    "ernie4_5": {},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_start_index": 1},
    "exaone": {},
    "exaone4": {"sliding_window": 16, "sliding_window_pattern": 2},
    "exaone_moe": {
        **EXPERTS,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "sliding_window": 16,
        "sliding_window_pattern": 2,
    },
    "falcon": {"head_dim": None, "num_kv_heads": 2, "new_decoder_architecture": True, "ffn_hidden_size": 64},
    "falcon_h1": {
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_chunk_size": 16,
    },
    "falcon_mamba": {"state_size": 8},
    "flex_olmo": EXPERTS,
    "gemma": {},
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 8},
    "gemma3": {
        "text_config": {**SIZES, "sliding_window": 16, "query_pre_attn_scalar": 8},
        "vision_config": VISION,
        "mm_tokens_per_image": 4,
    },
    "gemma3_text": {"sliding_window": 16, "query_pre_attn_scalar": 8},
    "gemma3n_text": {
        **GEMMA_LAYERS,
        "laurel_rank": 8,
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.5, 0.0],
    },
    "gemma4": {
        "text_config": {**SIZES, **GEMMA_LAYERS, "global_head_dim": 8},
        "vision_config": {**VISION, "num_key_value_heads": 4, "head_dim": 8, "position_embedding_size": 16},
    },
    "gemma4_text": {**GEMMA_LAYERS, "global_head_dim": 8},
    "glm": {},
    "glm4": {},
    "glm4_moe": ROUTED_EXPERTS,
    "glm4_moe_lite": {**LATENT_ATTENTION, **ROUTED_EXPERTS},
    "glm_moe_dsa": {**LATENT_ATTENTION, **ROUTED_EXPERTS, **SPARSE_ATTENTION},
    "gpt2": GPT2_SIZES,
    "gpt_bigcode": GPT2_SIZES,
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 16,
        "max_position_embeddings": 512,
    },
    "gpt_neox": {},
    "gpt_oss": {**LOCAL_EXPERTS, "sliding_window": 16},
    "gptj": {**GPT2_SIZES, "rotary_dim": 8},
    "granite": {},
    "granitemoe": LOCAL_EXPERTS,
    "granitemoehybrid": {
        **LOCAL_EXPERTS,
        "shared_intermediate_size": 32,
        "layer_types": ["mamba", "attention"],
        **MAMBA,
    },
    "granitemoeshared": {**LOCAL_EXPERTS, "shared_intermediate_size": 32},
    "helium": {},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},
    "hyperclovax": {},
    "internlm3": {},
    "jais2": {},
    "jamba": {
        **EXPERTS,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 8,
        "use_mamba_kernels": False,
    },
    "jetmoe": {**LOCAL_EXPERTS, "kv_channels": 8},
    "kimi_linear": {
        **LATENT_ATTENTION,
        **LOCAL_EXPERTS,
        "moe_intermediate_size": 32,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_head_dim": 8,
        "linear_num_heads": 4,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {
        **EXPERTS,
        "layer_types": ["conv", "full_attention"],
        "num_dense_layers": 1,
    },
    "lfm3": {
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "sliding_attention"],
        "sliding_window": 16,
    },
    "llama": {},
    "llama4_text": {**LOCAL_EXPERTS, "intermediate_size_mlp": 64, "num_experts_per_tok": 1},
    "longcat_flash": {
        **LATENT_ATTENTION,
        "num_layers": 2,
        "ffn_hidden_size": 64,
        "expert_ffn_hidden_size": 32,
        "moe_topk": 2,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
    },
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 16},
    "mimo_v2_flash": {**ROUTED_EXPERTS, "v_head_dim": 8, "sliding_window": 16},
    "minicpm3": LATENT_ATTENTION,
    "minimax": {**LOCAL_EXPERTS, "block_size": 16},
    "minimax_m2": {**LOCAL_EXPERTS},
    "ministral": {"sliding_window": 16},
    "ministral3": {},
    "mistral": {"sliding_window": None},
    "mixtral": LOCAL_EXPERTS,
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 512, "expansion_ratio": 2},
    "nanochat": {},
    "nemotron": {},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention", "moe"],
        "num_hidden_layers": 3,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 16,
        **ROUTED_EXPERTS,
        "moe_shared_expert_intermediate_size": 32,
        "moe_latent_size": None,
    },
    "olmo": {},
    "olmo2": {},
    "olmo3": {"sliding_window": 16},
    "olmo_hybrid": LINEAR_ATTENTION,
    "olmoe": EXPERTS,
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "persimmon": {},
    "phi": {},
    "phi3": {},
    "phimoe": LOCAL_EXPERTS,
    "qwen2": {},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3": {},
    "qwen3_5": {
        "text_config": {**SIZES, **LINEAR_ATTENTION},
        "vision_config": QWEN_VISION,
    },
    "qwen3_5_moe": {
        "text_config": {**SIZES, **LINEAR_ATTENTION, **EXPERTS, "shared_expert_intermediate_size": 32},
        "vision_config": QWEN_VISION,
    },
    "qwen3_5_moe_text": {**LINEAR_ATTENTION, **EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3_5_text": LINEAR_ATTENTION,
    "qwen3_moe": EXPERTS,
    "qwen3_next": {**EXPERTS, **LINEAR_ATTENTION, "shared_expert_intermediate_size": 32},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 16},
    "rwkv": {"context_length": 512},
    "seed_oss": {},
    "smollm3": {"no_rope_layers": [1, 0], "use_sliding_window": False},
    "solar_open": ROUTED_EXPERTS,
    "stablelm": {},
    "starcoder2": {},
    "vaultgemma": {"sliding_window": 16, "query_pre_attn_scalar": 8},
    "xglm": {"d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4},
    "youtu": LATENT_ATTENTION,
    "zamba2": {
        "mamba_d_state": 8,
        "mamba_headdim": 8,
        "n_mamba_heads": 8,
        "chunk_size": 16,
        "layers_block_type": ["mamba", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_mem_blocks": 1,
    },
}
"""Family (`model_type`) → settings that differ from `SIZES`."""


def tiny_config(family: str, tokenizer: Any) -> Any:
    """Return the configuration of a family's tiny model for a tokenizer."""
    vocabulary = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    # A configuration keeps settings that it does not have, and Mamba would get attention heads.
    published = AutoConfig.for_model(family).to_dict()
    sizes = {name: value for name, value in SIZES.items() if name in published}
    settings = {**sizes, **vocabulary, **FAMILIES[family]}
    if "text_config" in settings:
        settings["text_config"] = {**settings["text_config"], **vocabulary}
    settings = {name: value for name, value in settings.items() if value is not None or name in vocabulary}
    return AutoConfig.for_model(family, **settings)


def save_published(family: str, folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
    """Write a family's tiny model as its publisher does: with random weights, biases and norms, and images where it has them."""
    tokenizer = bpe_tokenizer()
    config = tiny_config(family, tokenizer)
    auto_class = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = auto_class.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, which start as ones and zeros
                parameter.add_(0.1 * torch.randn(parameter.shape))
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
