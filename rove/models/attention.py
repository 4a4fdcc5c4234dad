"""Attention for sampling and training, registered with transformers as "rove", also over packed batches with shared prefixes.

Axes: B rows or sequences, N tokens of a packed batch, H query heads, K key/value heads, n queries, T keys, d head size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from rove.models.kernels import load_kernels, pointers, run_rows

MAX_LENGTH_RATIO = 2
"""Maximum ratio of sequence lengths in one call of PyTorch's attention; shorter sequences are padded."""
MAX_SCORES = 1 << 22
"""Maximum number of attention scores per head and call."""


class PaddedRows(NamedTuple):
    """B sequences for one call of PyTorch attention, padded to the longest."""

    queries: torch.Tensor
    """[B, n] token indices; padding is arbitrary."""
    keys: torch.Tensor
    """[B, T] token indices of the queries and the tokens before them; padding is arbitrary."""
    real_indices: torch.Tensor
    """Indices of the flattened queries without padding."""
    bias: torch.Tensor | None
    """[B, 1, n, T] −∞ on keys that a query does not attend to, else 0; None means that queries and keys are the same tokens,
    with a causal mask."""


@dataclass(eq=False)
class Packing:
    """The structure of a packed batch: which tokens attend to which tokens.

    Sequences that start with the same tokens share them: a shared prefix belongs to an earlier sequence, where its tokens are
    queries. Every token is the query of exactly one sequence, and attends to the earlier tokens of this sequence.
    """

    paths: Sequence[np.ndarray]
    """Tokens of each sequence, as indices of the batch."""
    shared_lengths: np.ndarray
    """[B] length of the prefix that belongs to another sequence."""
    device: torch.device

    @cached_property
    def flat_paths(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The concatenated paths, their offsets [B + 1], and the shared lengths [B]."""
        offsets = np.cumsum([0, *map(len, self.paths)])
        arrays = (np.concatenate(self.paths), offsets, self.shared_lengths)
        paths, offsets, shared_lengths = map(torch.from_numpy, arrays)
        return paths, offsets, shared_lengths

    @cached_property
    def previous(self) -> torch.Tensor:
        """[N + 1] index of the token before each token in its sequence. N stands for no token, also before itself."""
        num_tokens = 1 + max(int(path.max()) for path in self.paths if len(path))
        previous = np.full(num_tokens + 1, num_tokens)
        for path in self.paths:
            previous[path[1:]] = path[:-1]
        return torch.from_numpy(previous).to(self.device)

    @cached_property
    def padded_rows(self) -> list[PaddedRows]:
        """Groups of sequences of similar length, for PyTorch."""
        return [self._padded(group) for group in self._similar_sequences()]

    @cached_property
    def token_order(self) -> torch.Tensor:
        """[N] index of each token among the queries of all groups."""
        sequences = chain.from_iterable(self._similar_sequences())
        order = np.concatenate([self.paths[i][self.shared_lengths[i] :] for i in sequences])
        return torch.from_numpy(np.argsort(order)).to(self.device)

    def _similar_sequences(self) -> Iterator[list[int]]:
        num_queries = np.array([len(path) for path in self.paths]) - self.shared_lengths
        # Sequences without a shared prefix form separate groups: they need no mask.
        has_prefix = self.shared_lengths > 0
        group: list[int] = []
        with_queries = np.flatnonzero(num_queries).tolist()
        for i in sorted(with_queries, key=lambda sequence: (has_prefix[sequence], -num_queries[sequence])):
            if group:
                first = group[0]
                longest = max(len(self.paths[member]) for member in [*group, i])
                scores = (len(group) + 1) * num_queries[first] * longest
                is_much_shorter = num_queries[i] * MAX_LENGTH_RATIO < num_queries[first]
                if has_prefix[i] != has_prefix[first] or is_much_shorter or scores > MAX_SCORES:
                    yield group
                    group = []
            group.append(i)
        if group:
            yield group

    def _padded(self, group: Sequence[int]) -> PaddedRows:
        starts = self.shared_lengths[group]
        counts = np.array([len(self.paths[i]) for i in group]) - starts
        queries = np.zeros((len(group), counts.max()), dtype=np.int64)
        keys = np.zeros((len(group), (counts + starts).max()), dtype=np.int64)
        for row, i in enumerate(group):
            path = self.paths[i]
            queries[row, : counts[row]] = path[starts[row] :]
            keys[row, : len(path)] = path
        real = np.flatnonzero(np.arange(queries.shape[1]) < counts[:, None])
        bias = None
        if starts.any():
            positions = starts[:, None] + np.arange(queries.shape[1])
            hidden = torch.from_numpy(np.arange(keys.shape[1]) > positions[:, :, None]).to(self.device)
            bias = torch.zeros(hidden.shape, device=self.device).masked_fill_(hidden, float("-inf"))[:, None]

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(self.device)

        return PaddedRows(tensor(queries), tensor(keys), tensor(real), bias)


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, scale: float
) -> torch.Tensor:
    """Compute attention over a packed batch: query [1, H, N, d], key and value [1, K, N, d] → [1, N, H, d]."""
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    library = None
    # The C kernel takes half as long as PyTorch's attention, and reads shared tokens in place instead of gathering them
    # (docs/decisions/kernels.md).
    if query.device.type == "cpu" and query.dtype == torch.float32:
        library = load_kernels("attention", query.shape[1] // key.shape[1], query.shape[2])
    if library is None:
        return _in_torch(query, key, value, packing, scale)
    out: Any = _NativeAttention.apply(query.contiguous(), key.contiguous(), value.contiguous(), packing, scale, library)
    return out[None]


def _in_torch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, scale: float
) -> torch.Tensor:
    outputs = []
    for rows in packing.padded_rows:
        queries = _gathered(query, rows.queries)
        keys, values = _gathered(key, rows.keys), _gathered(value, rows.keys)
        bias = None if rows.bias is None else rows.bias.to(queries.dtype)
        out = scaled_dot_product_attention(
            queries, keys, values, attn_mask=bias, is_causal=bias is None, scale=scale, enable_gqa=True
        )
        outputs.append(out.transpose(1, 2).flatten(0, 1).flatten(1).index_select(0, rows.real_indices))
    in_token_order = torch.cat(outputs).index_select(0, packing.token_order)
    return in_token_order.view(1, len(query), -1, query.shape[-1])


def _gathered(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the tokens of x [N, K, d] at indices [B, n], as [B, K, n, d]."""
    # index_select is twenty times as fast as indexing when gradients are needed
    flat = x.reshape(len(x), -1).index_select(0, indices.flatten())
    return flat.view(*indices.shape, -1, x.shape[-1]).transpose(1, 2)


class _NativeAttention(torch.autograd.Function):
    """query [N, H, d], key and value [N, K, d], contiguous fp32 on the CPU → [N, H, d]."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        packing: Packing,
        scale: float,
        library: ctypes.CDLL,
    ) -> torch.Tensor:
        out, lse = torch.empty_like(query), query.new_empty(query.shape[:2])
        run_attention(library.forward, (query, key, value), scale, packing, (out, lse))
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.packing, ctx.scale, ctx.library = packing, scale, library
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        # The kernel adds to the gradients of keys and values, because several sequences may share a token.
        d_query, d_key, d_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        tensors = (out, lse, grads[0].contiguous(), d_query, d_key, d_value)
        run_attention(ctx.library.backward, (query, key, value), ctx.scale, ctx.packing, tensors)
        return d_query, d_key, d_value, None, None, None


def run_attention(
    function: Callable[..., int],
    qkv: tuple[torch.Tensor, ...],
    scale: float,
    packing: Packing,
    tensors: tuple[torch.Tensor, ...],
) -> None:
    """Call a kernel of `attention.c`, with the key heads split over threads.

    Args:
        qkv: Queries [N, H, d], keys [N, K, d] and values [N, K, d], contiguous fp32.
        tensors: The kernel's last arguments: tensors for results, and tensors from which the results are computed.
    """
    heads = qkv[1].shape[1]
    inputs = (*pointers(*qkv), scale, *pointers(*packing.flat_paths), len(packing.paths), heads)
    addresses = pointers(*tensors)

    # Split by head, not by row: rows may share tokens, and two threads would add to the gradients of one token.
    def attend_heads(first: int, last: int) -> int:
        return function(*inputs, first, last, *addresses)

    if any(run_rows(heads, attend_heads)):
        raise MemoryError("out of memory in attention; lower micro_batch_tokens")


NAME = "rove"

PLAIN_MODEL_TYPES = frozenset({"llama", "qwen2", "qwen3", "mistral", "lfm2"})
"""Model types whose attention is softmax(q·k)·v over all earlier tokens."""


def is_plain(config: Any) -> bool:
    """Return whether rove's attention computes what the model defines: no sliding window, soft cap or attention sink."""
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if getattr(config, "sliding_window", None) is not None:
        return False
    return config.model_type in PLAIN_MODEL_TYPES and layer_types <= {"full_attention", "conv"}


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packing: Packing | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention of query [B, H, n, d] over key and value [B, K, T, d] → [B, n, H, d].

    Without a mask, attention is causal, with the last query at the last key. A boolean mask [B, 1, n, T] marks the
    visible keys; query heads that share a key head then go through one matrix product, which at n = 1 on a CPU is
    several times faster than PyTorch's fused attention and does not copy keys per head. For `packing`, see
    `packed_attention`.
    """
    rows, heads, queries, size = query.shape
    groups = heads // key.shape[1]
    keys = key.shape[2]
    scale = size**-0.5 if scaling is None else scaling
    if packing is not None:
        return packed_attention(query, key, value, packing, scale), None
    if attention_mask is None and queries == keys:
        if groups > 1:
            key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, dropout_p=dropout)
        return out.transpose(1, 2), None
    if attention_mask is None and queries > 1:
        all_keys = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
        attention_mask = all_keys.tril(keys - queries)[None, None]
    kv_heads = key.shape[1]
    grouped = query.reshape(rows, kv_heads, groups * queries, size)
    scores = (grouped @ key.transpose(-1, -2)) * scale
    if attention_mask is not None:
        scores = scores.view(rows, kv_heads, groups, queries, keys)
        scores = scores.masked_fill(~attention_mask[:, :, None], float("-inf")).view(rows, kv_heads, -1, keys)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype)
    out = (weights @ value).reshape(rows, heads, queries, size)
    return out.transpose(1, 2), None


def attend_decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Compute attention of one token per sequence: query [B, H, d] (scaled), keys [B, K, d, T], values [B, K, T, d] → [B, H, d].

    `bias` [B, T] is −∞ on hidden keys, else 0. Query heads that share a key head are the rows of one matrix product, and keys
    stored transposed are read sequentially.
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
    """Compute attention of several tokens per sequence: query [B, n, H, d] (scaled) → [B, n, H, d].

    Without `starts`, the keys and values [B, n, K, d] belong to the same tokens as the queries. With `starts`, they
    cover the whole sequence, [B, K, T, d], and the queries of row b are at positions starts[b] and following.
    """
    rows, queries, heads, size = query.shape
    if starts is None:
        kv_heads = key.shape[2]
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        if kv_heads < heads:
            key, value = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (key, value))
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0).transpose(1, 2)
    kv_heads, length = key.shape[1], key.shape[2]
    positions = starts[:, None] + torch.arange(queries, device=query.device)
    hidden = torch.arange(length, device=query.device) > positions[:, :, None]
    grouped = query.transpose(1, 2).reshape(rows, kv_heads, -1, size)
    scores = (grouped @ key.transpose(-1, -2)).view(rows, heads, queries, length)
    scores.masked_fill_(hidden[:, None], float("-inf"))
    out = scores.softmax(dim=-1).view(rows, kv_heads, -1, length) @ value
    return out.view(rows, heads, queries, size).transpose(1, 2)


def _no_mask(*args: object, attention_mask: torch.Tensor | None = None, **kwargs: object) -> None:
    """Return no mask: transformers requests a mask for each attention function, but rove's function is causal without a mask."""
    if attention_mask is not None and not attention_mask.all():
        raise ValueError(
            "rove's attention takes no padding mask: pad on the right, or pass a boolean mask [B, 1, n, T]"
        )
    return None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, _no_mask)
