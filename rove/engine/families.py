"""Model families that the decoder supports, and the attribute names of their modules."""

from __future__ import annotations

from typing import NamedTuple


class Names(NamedTuple):
    """Attribute names of a family's modules and configuration; the defaults are Llama's."""

    eps: str = "rms_norm_eps"
    last_norm: str = "norm"
    mixer_norm: str = "input_layernorm"
    query_norm: str = "q_norm"
    key_norm: str = "k_norm"
    out: str = "o_proj"
    mlp: str = "mlp"
    mlp_norm: str = "post_attention_layernorm"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


LLAMA = Names()
FAMILIES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "gemma": LLAMA,
    "smollm3": LLAMA,
    "lfm2": Names(
        eps="norm_eps",
        last_norm="embedding_norm",
        mixer_norm="operator_norm",
        query_norm="q_layernorm",
        key_norm="k_layernorm",
        out="out_proj",
        mlp="feed_forward",
        mlp_norm="ffn_norm",
        gate="w1",
        up="w3",
        down="w2",
    ),
}
