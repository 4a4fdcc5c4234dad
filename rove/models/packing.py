"""Attention over packed batches, whose sequences share the tokens that they have in common.

Axes: N tokens of the batch, H query heads, K key/value heads, d head size, B sequences.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from rove import kernels

ALIKE = 2
"""Sequences of one call of PyTorch's attention differ in length by at most this factor; the rest is padding."""
SCORES = 1 << 22
"""Most attention scores per head of one call."""


class Rows(NamedTuple):
    """Sequences that are attended to together by PyTorch, B of them, padded to the longest."""

    queries: torch.Tensor
    """[B, n] tokens of the batch; padded with any."""
    keys: torch.Tensor
    """[B, T] likewise: the queries and what comes before them, wherever it is."""
    real: torch.Tensor
    """Places of the flattened queries that are no padding."""
    bias: torch.Tensor | None
    """[B, 1, n, T] −∞ on what a query does not see, else 0; None: queries and keys are the same, and it is causal."""


@dataclass(eq=False)
class Packing:
    """Who sees whom. A sequence's first tokens may be another's too, where they are queries; each token is the query of
    exactly one sequence, and sees what comes before it there.
    """

    paths: Sequence[np.ndarray]
    """The tokens of each sequence, as places in the batch."""
    shared: np.ndarray
    """[B] how many of the first ones are another's."""
    device: torch.device

    @cached_property
    def flat(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The paths behind one another; [B + 1] where each begins; [B] shared."""
        offsets = np.cumsum([0, *map(len, self.paths)])
        return torch.from_numpy(np.concatenate(self.paths)), torch.from_numpy(offsets), torch.from_numpy(self.shared)

    @cached_property
    def rows(self) -> list[Rows]:
        """For PyTorch: sequences of similar length together."""
        return [self._padded(some) for some in self._alike()]

    @cached_property
    def order(self) -> torch.Tensor:
        """[N] where each token is among the rows' real queries, one after another."""
        order = np.concatenate([self.paths[i][self.shared[i] :] for some in self._alike() for i in some])
        return torch.from_numpy(np.argsort(order)).to(self.device)

    def _alike(self) -> Iterator[list[int]]:
        new = np.array([len(path) for path in self.paths]) - self.shared
        group: list[int] = []
        for i in sorted(np.flatnonzero(new).tolist(), key=lambda i: (self.shared[i] > 0, -new[i])):
            if group:
                most = max(len(self.paths[j]) for j in [*group, i])
                other_kind = (self.shared[i] > 0) != (self.shared[group[0]] > 0)
                if other_kind or new[i] * ALIKE < new[group[0]] or (len(group) + 1) * new[group[0]] * most > SCORES:
                    yield group
                    group = []
            group.append(i)
        if group:
            yield group

    def _padded(self, chosen: Sequence[int]) -> Rows:
        starts = self.shared[chosen]
        counts = np.array([len(self.paths[i]) for i in chosen]) - starts
        queries = np.zeros((len(chosen), counts.max()), dtype=np.int64)
        keys = np.zeros((len(chosen), (counts + starts).max()), dtype=np.int64)
        for b, i in enumerate(chosen):
            queries[b, : counts[b]], keys[b, : len(self.paths[i])] = self.paths[i][starts[b] :], self.paths[i]
        real = np.flatnonzero((np.arange(queries.shape[1]) < counts[:, None]).ravel())
        bias = None
        if starts.any():
            seen = starts[:, None] + np.arange(queries.shape[1])
            hidden = torch.from_numpy(np.arange(keys.shape[1]) > seen[:, :, None]).to(self.device)
            bias = torch.zeros(hidden.shape, device=self.device).masked_fill_(hidden, float("-inf"))[:, None]
        made = (torch.from_numpy(x).to(self.device) for x in (queries, keys, real))
        return Rows(*made, bias)  # pyright: ignore[reportCallIssue]


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, scale: float
) -> torch.Tensor:
    """Attention over a packed batch: query [1, H, N, d], key and value [1, K, N, d] → [1, N, H, d]."""
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    library = None
    if query.device.type == "cpu" and query.dtype == torch.float32:
        library = kernels.compiled("attention", query.shape[1] // key.shape[1], query.shape[2])
    if library is None:
        return _in_torch(query, key, value, packing, scale)
    out: Any = _Native.apply(query.contiguous(), key.contiguous(), value.contiguous(), packing, scale, library)
    return out[None]


def _in_torch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, scale: float
) -> torch.Tensor:
    seen = []
    for rows in packing.rows:
        mine, keys, values = (
            # index_select: twenty times as fast as indexing where gradients are wanted
            x.reshape(len(x), -1).index_select(0, places.flatten()).view(*places.shape, -1, x.shape[-1]).transpose(1, 2)
            for x, places in ((query, rows.queries), (key, rows.keys), (value, rows.keys))
        )
        bias = None if rows.bias is None else rows.bias.to(mine.dtype)
        out = scaled_dot_product_attention(
            mine, keys, values, attn_mask=bias, is_causal=bias is None, scale=scale, enable_gqa=True
        )
        seen.append(out.transpose(1, 2).flatten(0, 1).flatten(1).index_select(0, rows.real))
    return torch.cat(seen).index_select(0, packing.order).view(1, len(query), -1, query.shape[-1])


class _Native(torch.autograd.Function):
    """query [N, H, d], key and value [N, K, d], contiguous, fp32, on the CPU → [N, H, d]."""

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
        _run(library.forward, (query, key, value), scale, packing, (out, lse))
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.packing, ctx.scale, ctx.library = packing, scale, library
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        d_query, d_key, d_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        wanted = (out, lse, grads[0].contiguous(), d_query, d_key, d_value)
        _run(ctx.library.backward, (query, key, value), ctx.scale, ctx.packing, wanted)
        return d_query, d_key, d_value, None, None, None


def _run(
    function: Callable[..., int],
    given: tuple[torch.Tensor, ...],
    scale: float,
    packing: Packing,
    wanted: tuple[torch.Tensor, ...],
) -> None:
    """Call a kernel, its key heads shared out among as many threads as PyTorch would use."""
    heads = given[1].shape[1]
    parts = min(torch.get_num_threads(), heads)
    edges = [heads * i // parts for i in range(parts + 1)]

    def some(first: int, last: int) -> int:
        layout = (x.data_ptr() for x in packing.flat)
        counts = (len(packing.paths), heads, first, last)
        return function(*(x.data_ptr() for x in given), scale, *layout, *counts, *(x.data_ptr() for x in wanted))

    if parts == 1:
        failed = some(0, heads)
    else:
        with ThreadPoolExecutor(parts) as pool:
            failed = any(list(pool.map(some, edges[:-1], edges[1:])))
    if failed:
        raise MemoryError("no memory for attention; use a smaller micro_batch_tokens")
