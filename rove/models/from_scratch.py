"""Small models from scratch: a tokenizer trained on an environment's text, and random weights or layers that can recall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rove.core.errors import ConfigError, nearest
from rove.core.plain import Arguments
from rove.models.load import LoadedModel, prepare

ROLES = ("system", "user", "assistant", "tool")
PAD, END = "<|pad|>", "<|end|>"
TOOLS_BEGIN = "Functions that you may call:\n<tools>"
TOOLS_END = """</tools>\nTo call one, write:\n<tool_call>
{"name": "its name", "arguments": {"name of an argument": "its value"}}\n</tool_call>"""
"""Instructions around the tools in the chat template."""
CHAT_TEMPLATE = (
    "{% if tools %}<|system|>" + TOOLS_BEGIN + "{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}"
    "{{ '\n' }}" + TOOLS_END + "<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% for call in m['tool_calls'] or [] %}{% if m['content'] or not loop.first %}{{ '\n' }}{% endif %}"
    """{{ '<tool_call>\n{"name": ' }}{{ call['function']['name'] | tojson }}"""
    """{{ ', "arguments": ' }}{{ call['function']['arguments'] | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"""
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Chat template that only appends: the rendering of a conversation starts with the rendering of every prefix of the conversation.
Tools and calls are written in the Hermes format."""
RESPONSE_TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|end\|>\s*", "content": "text"},
    },
}
"""How transformers 5.13 and later parse a response in the format of `CHAT_TEMPLATE`. TRL refuses tools without it, because it
knows only published chat templates."""

WORDS = Regex(r"</?\w+>|\s(?=</?\w+>)| ?\p{L}+| ?\p{N}(?!\p{N})|\p{N}| ?[^\s\p{L}\p{N}]|\s")
"""Pattern that splits texts into whole tags, words, single digits, and single other characters. Each part includes the space
before it, except tags and the digits of longer numbers."""
SPLIT = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(WORDS, "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)
WORD_SHARE = 0.05
"""A word has its own token if at least this share of an environment's texts contain it."""

SIZES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
    "small": {
        "hidden_size": 256,
        "intermediate_size": 640,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
    },
}
ARCHITECTURE_SIZES: dict[tuple[str, str], dict[str, int]] = {("lfm2", "tiny"): {"num_hidden_layers": 4}}
"""What differs from `SIZES` in an architecture: in LFM2, a convolution precedes each layer with attention."""
RECALL_LAYERS: dict[tuple[str, str], Path] = {
    ("lfm2", "tiny"): Path(__file__).with_name("lfm2_tiny_recall.safetensors")
}
"""Weights of layers that were trained to find and copy symbols of the prompt, with other symbols in every step; see
docs/decisions/recall_layers.md."""
INITS = ("random", "recall")
QUERY_KEY_SCALE = 0.25
"""Initial scale of query and key projections, so that attention is nearly uniform at first. With a scale of 1, small models often
stayed at the level of a guess (benchmarks/LOG.md, 2026-11-25)."""
ARCHITECTURES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "lfm2": (Lfm2Config, Lfm2ForCausalLM),
}


def train_tokenizer(
    texts: Iterable[str], vocab_size: int = 512, word_share: float = WORD_SHARE
) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each common word of `texts` and for each byte, so that it can encode any text.

    There are no tokens for parts of words: a rare word is spelled in bytes, so that a model can learn from its letters.
    If the texts contain tool calls, the instructions of the chat template are added to them.

    Args:
        texts: Texts such as rollouts of the environment.
        vocab_size: Maximum number of tokens, including 256 bytes and 6 special tokens.
        word_share: A word has its own token if at least this share of the texts contain it.
    """
    texts = list(texts)
    counts = Counter(chain.from_iterable(map(_words, texts)))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))  # equal in every process
    common = [word for word in ranked if counts[word] >= word_share * len(texts)]
    if any("<tool_call>" in text for text in texts):
        common += sorted(_words(TOOLS_BEGIN + TOOLS_END) - set(common))
    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [word for word in common if len(word) > 1]
    vocabulary = [*special, *bytes_, *words][: max(vocab_size, len(special) + len(bytes_))]
    ids = {token: id for id, token in enumerate(vocabulary)}
    # `ignore_merges`: a word of the vocabulary is one token without any merges
    bpe = models.BPE(vocab=ids, merges=[], ignore_merges=True)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = SPLIT  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, extra_special_tokens=special[2:]
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.response_template = RESPONSE_TEMPLATE
    return fast


def _words(text: str) -> set[str]:
    """Return the words of a text in the spelling of the vocabulary."""
    return {word for word, _ in SPLIT.pre_tokenize_str(text)}


def new_model(
    texts: Iterable[str],
    arch: str = "llama",
    size: str = "tiny",
    vocab_size: int = 512,
    seed: int = 0,
    word_share: float = WORD_SHARE,
    init: str = "random",
) -> LoadedModel:
    """Return a new model and a tokenizer trained on `texts`.

    Args:
        arch: "llama", "qwen3" or "lfm2".
        size: "tiny" (about 0.5 M parameters; "lfm2": 0.7 M) or "small" (about 4 M).
        vocab_size: Maximum number of tokens, including 256 bytes and 6 special tokens.
        word_share: A word has its own token if at least this share of the texts (0 to 1) contain it.
        init: "random" for random weights, or "recall" for layers that can find and copy symbols of the prompt, with random
            embeddings.
    """
    _check_choices(arch, size, word_share, init)
    tokenizer = train_tokenizer(texts, vocab_size, word_share)
    shape: Arguments = SIZES[size] | ARCHITECTURE_SIZES.get((arch, size), {})
    layers = shape["num_hidden_layers"]
    if arch == "qwen3":
        shape["head_dim"] = shape["hidden_size"] // shape["num_attention_heads"]
    if arch == "lfm2":
        shape |= {"full_attn_idxs": list(range(1, layers, 2)), "block_auto_adjust_ff_dim": False}
    config_class, model_class = ARCHITECTURES[arch]
    config = config_class(
        vocab_size=len(tokenizer),
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=shape["hidden_size"] ** -0.5,  # transformers' 0.02 is for models of width 2,500
        **shape,
    )
    # Forked: the model's seed must not change what the rest of the process draws.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weight *= QUERY_KEY_SCALE
    if init == "recall":
        stored = {name: weight.float() for name, weight in load_file(RECALL_LAYERS[arch, size]).items()}
        # The embeddings, which are also the output layer, stay random: they depend on the tokenizer.
        missing, unexpected = model.load_state_dict(stored, strict=False)
        missing_layers = [name for name in missing if not name.startswith(("model.embed_tokens", "lm_head"))]
        if missing_layers or unexpected:
            raise ConfigError(
                f"this version of transformers names layers of LFM2 differently: {[*missing_layers, *unexpected]}"
            )
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=pad)
    return prepare(model, tokenizer)


def _check_choices(arch: str, size: str, word_share: float, init: str) -> None:
    if arch not in ARCHITECTURES:
        raise ConfigError(f"unknown architecture '{arch}'; {nearest(arch, ARCHITECTURES)}")
    if size not in SIZES:
        raise ConfigError(f"unknown size '{size}'; {nearest(size, SIZES)}")
    if init not in INITS:
        raise ConfigError(f"unknown init '{init}'; {nearest(init, INITS)}")
    if init == "recall" and (arch, size) not in RECALL_LAYERS:
        choices = " or ".join(f"arch {arch} with size {size}" for arch, size in RECALL_LAYERS)
        raise ConfigError(f"init is 'recall', arch '{arch}' and size '{size}'; there are such layers for {choices}")
    if not 0 <= word_share <= 1:
        raise ConfigError(f"word_share is {word_share}; expected a share from 0 to 1")
