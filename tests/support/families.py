"""Tiny random models of the families that the engine is tested with, and a comparison with recomputation from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from fakes import bpe_tokenizer, sample

from rove.core.protocols import Generation
from rove.engine.sampler import uniforms
from rove.models.load import LoadedModel, prepare

TOLERANCE = 1e-4
FAMILIES = {
    "llama": ("Llama", {"attention_bias": True}),
    "smollm": ("Llama", {"num_key_value_heads": 4}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 8}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0], "use_sliding_window": False}),
    "lfm2": (
        "Lfm2",
        {
            "num_hidden_layers": 3,
            "full_attn_idxs": [1],
            "block_auto_adjust_ff_dim": False,
            "conv_L_cache": 4,
            "conv_bias": True,
        },
    ),
}
FAST = {"llama", "smollm", "smollm3", "mistral", "qwen2", "qwen3", "gemma", "lfm2"}


def family_model(family: str, seed: int = 0) -> LoadedModel:
    """Return a model of two or three layers of width 32 with random weights, biases and norms."""
    name, shape = FAMILIES[family]
    tokenizer = bpe_tokenizer()
    defaults: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    config = getattr(transformers, f"{name}Config")(**{**defaults, **shape})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, which start as ones and zeros
                parameter.add_(0.2 * torch.randn(parameter.shape))
    return prepare(model, tokenizer)


def assert_matches_recomputation(
    loaded: LoadedModel,
    prompt: Sequence[int],
    got: Generation,
    seed: int,
    temperature: float,
    tolerance: float = TOLERANCE,
) -> None:
    """Assert that recomputation from scratch gives the same tokens (or ties with them) and the same log-probabilities."""
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *got.ids]])
        logits = loaded.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    count = len(got.ids)
    seeds, positions = torch.full((count,), seed % (1 << 63)), torch.arange(count)
    expected, _ = sample(logits, torch.full((count,), temperature), seeds, positions)
    logprobs = (logits / (temperature or 1.0)).log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(got.ids)[:, None])[:, 0]
    assert (chosen - torch.tensor(got.logprobs)).abs().max() <= tolerance
    draws = uniforms(seeds, positions)
    for i, token in enumerate(got.ids):
        if token == expected[i]:
            continue
        if temperature == 0:
            assert logprobs[i].max() - logprobs[i, token] <= tolerance
        else:
            edges = [0.0, *logprobs[i].double().exp().cumsum(0).tolist()]
            assert edges[token] - tolerance <= draws[i] <= edges[token + 1] + tolerance
