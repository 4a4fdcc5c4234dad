"""One attention function for sampling and training, registered with transformers as "rove".

Axes: B rows, H query heads, K key/value heads, n queries, T keys, d head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from rove.models.packing import Packing, packed_attention

NAME = "rove"

PLAIN = frozenset({"llama", "qwen2", "qwen3", "mistral", "lfm2"})
"""Model types whose attention is nothing but softmax(q·k)·v over everything before."""


def fits(config: Any) -> bool:
    """Whether our attention is what the model means: no sliding windows, soft caps or attention sinks."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) is not None
    return config.model_type in PLAIN and kinds <= {"full_attention", "conv"} and not windowed


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over query [B, H, n, d] and key, value [B, K, T, d] → [B, n, H, d].

    Without a mask it is causal, the last query standing on the last key. A boolean mask [B, 1, n, T] says which keys each
    query sees; then query heads that share a key head go through one matrix product, which at n = 1 on a CPU is several
    times faster than PyTorch's fused attention and needs no copy of the keys per head. With `packing` see `packed_attention`.
    """
    rows, heads, queries, size = query.shape
    groups = heads // key.shape[1]
    keys = key.shape[2]
    scale = size**-0.5 if scaling is None else scaling
    if packing is not None:
        return packed_attention(query, key, value, packing, scale), None
    if attention_mask is None and queries == keys:
        key, value = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (key, value))
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, dropout_p=dropout)
        return out.transpose(1, 2), None
    if attention_mask is None and queries > 1:
        attention_mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)[
            None, None
        ]
    grouped = query.reshape(rows, key.shape[1], groups * queries, size)
    scores = (grouped @ key.transpose(-1, -2)) * scale
    if attention_mask is not None:
        scores = scores.view(rows, key.shape[1], groups, queries, keys)
        scores = scores.masked_fill(~attention_mask[:, :, None], float("-inf")).view(rows, key.shape[1], -1, keys)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype)
    out = (weights @ value).reshape(rows, heads, queries, size)
    return out.transpose(1, 2), None


def attend_decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """One new token per sequence: query [B, H, d], already scaled, over keys [B, K, d, T] and values [B, K, T, d] → [B, H, d].

    `bias` [B, T] is −∞ on the keys that a sequence does not see, else 0. Query heads that share a key head are the rows of one
    matrix product, and keys that are stored transposed are read in order.
    """
    rows, heads, size = query.shape
    kv_heads = keys.shape[1]
    grouped = query.reshape(rows, kv_heads, heads // kv_heads, size)
    scores = grouped @ keys
    if bias is not None:
        scores += bias[:, None, None]
    return (scores.softmax(dim=-1) @ values).view(rows, heads, size)


def attend_chunk(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor | None = None
) -> torch.Tensor:
    """Several new tokens per sequence: query [B, n, H, d], already scaled → [B, n, H, d].

    Without `starts` the keys and values [B, n, K, d] are those of the very same tokens. With it they are all of the sequence
    so far, [B, K, T, d], and the queries of row b stand at positions starts[b] and following.
    """
    rows, queries, heads, size = query.shape
    if starts is None:
        kv_heads = key.shape[2]
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        if kv_heads < heads:
            key, value = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (key, value))
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0).transpose(1, 2)
    kv_heads, length = key.shape[1], key.shape[2]
    places = starts[:, None] + torch.arange(queries, device=query.device)
    hidden = torch.arange(length, device=query.device) > places[:, :, None]
    grouped = query.transpose(1, 2).reshape(rows, kv_heads, -1, size)
    scores = (grouped @ key.transpose(-1, -2)).view(rows, heads, queries, length)
    scores.masked_fill_(hidden[:, None], float("-inf"))
    seen = scores.softmax(dim=-1).view(rows, kv_heads, -1, length) @ value
    return seen.view(rows, heads, queries, size).transpose(1, 2)


def _no_mask(*args: Any, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> None:
    """transformers asks for a mask per attention function; ours is causal without one."""
    if attention_mask is not None and not attention_mask.all():
        raise ValueError(
            "rove's attention takes no padding mask: pad on the right, or pass a boolean mask [B, 1, n, T]"
        )
    return None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, _no_mask)
