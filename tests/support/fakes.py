"""Tiny models, tokenizers and rollouts that several test files share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
)

from rove.core.protocols import Generation
from rove.core.records import RolloutRecord, Scores, StepTokens, TrajectoryStep
from rove.engine.sampler import apply_temperature, sample_ids, uniforms
from rove.models.from_scratch import ARCHITECTURES, CHAT_TEMPLATE, END, PAD, ROLES
from rove.models.load import LoadedModel, prepare

torch.set_num_threads(1)

TEXTS = [
    "You are X. <think>Any square: 4.</think><move>4</move> 0 1 2 3 5 6 7 8 X O Invalid move. hello world, you say no\n"
] * 20


SPLIT = Regex(r"</?\w+>| ?\p{L}+| ?\p{N}|\s| ?[^\s\p{L}\p{N}]")


def bpe_tokenizer(texts: list[str] = TEXTS, vocab_size: int = 320) -> Any:
    """Return a byte-level BPE tokenizer with merges, as pretrained models have, and with the chat template of new models."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(SPLIT, "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, extra_special_tokens=special[2:]
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


SLOW_ARCHITECTURES: dict[str, Any] = {
    "gemma2": (Gemma2Config, Gemma2ForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
}
"""Architectures that rove's engine has no fast path for."""


def tiny_model(arch: str = "llama", seed: int = 0, kv_heads: int = 1, context: int = 1024) -> LoadedModel:
    """Return a model of two layers of width 32; its random weights are large, so that its distributions are not uniform.

    Args:
        arch: "llama", "qwen3", "lfm2", or one of `SLOW_ARCHITECTURES`.
        seed: Seed of the weights.
        kv_heads: Number of key-value heads; there are 4 attention heads.
        context: Context length.
    """
    tokenizer = bpe_tokenizer()
    config_class, model_class = {**ARCHITECTURES, **SLOW_ARCHITECTURES}[arch]
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    if arch == "qwen3":
        shape["head_dim"] = 16
    if arch == "gemma2":
        shape |= {"head_dim": 16, "sliding_window": 8}
    if arch == "mixtral":
        shape |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    if arch == "lfm2":
        shape |= {"full_attn_idxs": [1], "block_auto_adjust_ff_dim": False}
    config = config_class(
        vocab_size=len(tokenizer),
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        **shape,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loaded = prepare(model_class(config), tokenizer)
        with torch.no_grad():  # a higher weight of the end of a turn, so that responses have many lengths
            loaded.model.lm_head.weight[tokenizer.eos_token_id] *= 5
    return loaded


def generate_naively(
    loaded: LoadedModel, prompt: Sequence[int], seed: int, temperature: float = 1.0, max_tokens: int = 16
) -> Generation:
    """Generate as a reference for the engine: one prompt at a time, and a full forward pass per token without cache or mask."""
    ids: list[int] = []
    logprobs: list[float] = []
    while len(ids) < max_tokens and not (ids and ids[-1] in loaded.renderer.stop_ids):
        with torch.inference_mode():
            logits = loaded.model(input_ids=torch.tensor([[*prompt, *ids]]), use_cache=False).logits[:, -1]
        token, logprob = sample(logits, torch.tensor([temperature]), torch.tensor([seed]), torch.tensor([len(ids)]))
        ids.append(int(token))
        logprobs.append(float(logprob))
    return Generation(ids, logprobs, "stop" if ids[-1] in loaded.renderer.stop_ids else "length", 0)


def make_rollout(
    turns: Sequence[StepTokens | None] = (), reward: float | None = 0.0, key: str = "a", index: int = 0, **fields: Any
) -> RolloutRecord:
    """Return a finished rollout with these turns, or a failed one if `reward` is None."""
    defaults: dict[str, Any] = {
        "example_key": key,
        "example_id": 0,
        "rollout_index": index,
        "seed": 0,
        "prompt": [],
        "completion": [],
        "answer": "",
        "info": {},
        "steps": [TrajectoryStep([], [], tokens=turn) for turn in turns],
        "stop_condition": "answered",
        "is_truncated": False,
        "scores": None if reward is None else Scores(reward, {}, {}),
        "error": None,
    }
    return RolloutRecord(**{**defaults, **fields})


def sample(
    logits: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor, position: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row from the model's distribution at a temperature, as a reference for the samplers.

    Args:
        logits: [B, V].
        temperature: [B]; 0 = greedy, with the log-probabilities at temperature 1.
        seeds, position: [B] int64.

    Returns:
        ids [B] and their log-probabilities [B] under the distribution that they were sampled from.
    """
    scores = apply_temperature(logits, temperature)
    probabilities = scores.softmax(-1)
    ids = torch.where(temperature == 0, scores.argmax(-1), sample_ids(probabilities, uniforms(seeds, position)))
    return ids, probabilities.gather(1, ids[:, None])[:, 0].log()
