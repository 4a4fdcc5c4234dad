"""What a step of the decoder does between its matrix products, in PyTorch; `rove.engine.ops` does the same on CPUs, faster.

Axes: N tokens, B rows, H query heads, K key/value heads, d head size, P positions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch.nn.functional import gelu, rms_norm, silu

from rove import kernels
from rove.engine.batch import DecodeBatch
from rove.models.attention import attend_decode


class AttentionHeads(NamedTuple):
    """Attention's shape."""

    queries: int
    keys: int
    size: int
    eps: float
    """Of the norm of queries and keys, where there is one."""


class Ops(Protocol):
    """Element-wise work and decode attention."""

    block: int
    """Positions in a block of the cache's keys; see `Shape.block`."""
    takes_any_rows: bool
    """Whether decoded rows may lie anywhere in their pool, and be several tokens of one sequence; else they must stand together,
    in order, one token each."""
    norm_dtype: torch.dtype | None
    """Of the weights of norms; None = the model's."""

    def add_norm(self, x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        """Add `more` to x [N, D], in place; returns the RMS-normed x times `weight` [D]."""
        ...

    def gate(self, both: torch.Tensor) -> torch.Tensor:
        """Gates and what they gate, [N, 2 · D] → [N, D]."""
        ...

    def attend(
        self,
        layer: int,
        qkv: torch.Tensor,
        norm: torch.Tensor | None,
        angles: torch.Tensor,
        part: DecodeBatch,
        out: torch.Tensor,
    ) -> None:
        """Decode attention: put keys and values of the new tokens into the cache, and write what each sees to `out`.

        Args:
            layer: of the cache.
            qkv: [B, H + 2 · K, d], before they are normed and turned.
            norm: [H + K, d] weights of the norm of queries and keys, or None.
            angles: [P, d / 2] complex: by how much each position turns.
            part: where the tokens are.
            out: [B, H, d].
        """
        ...


def rotate_qkv(
    qkv: torch.Tensor, heads: AttentionHeads, norm: torch.Tensor | None, angles: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [N, H, d], normed, turned by angles [N, d / 2] and scaled; keys [N, K, d], likewise but for the scale; values."""
    both, value = qkv[:, : heads.queries + heads.keys], qkv[:, heads.queries + heads.keys :]
    if norm is not None:
        both = (rms_norm(both.to(norm.dtype), (heads.size,), None, heads.eps) * norm).to(qkv.dtype)
    angles = angles[:, None]
    pairs = torch.view_as_complex(both.float().unflatten(-1, (-1, 2)).contiguous())
    query = torch.view_as_real(pairs[:, : heads.queries] * (angles * heads.size**-0.5)).flatten(-2).to(qkv.dtype)
    key = torch.view_as_real(pairs[:, heads.queries :] * angles).flatten(-2).to(qkv.dtype)
    return query, key, value


class TorchOps:
    """On any device.

    Args:
        heads: of attention.
        eps: of the norms.
        activation: "silu", "gelu" or "gelu_pytorch_tanh".
    """

    block: int = 0
    takes_any_rows: bool = False
    norm_dtype: torch.dtype | None = None

    def __init__(self, heads: AttentionHeads, eps: float, activation: str):
        self.heads, self.eps, self.activation = heads, eps, activation

    def add_norm(self, x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:  # noqa: D102
        if more is not None:
            x += more
        return rms_norm(x.to(weight.dtype), x.shape[-1:], weight, self.eps).to(x.dtype)

    def gate(self, both: torch.Tensor) -> torch.Tensor:  # noqa: D102
        gate, other = both.chunk(2, dim=-1)
        if self.activation == "silu":
            return silu(gate) * other
        return gelu(gate, approximate="tanh" if self.activation == "gelu_pytorch_tanh" else "none") * other

    def attend(  # noqa: D102
        self,
        layer: int,
        qkv: torch.Tensor,
        norm: torch.Tensor | None,
        angles: torch.Tensor,
        part: DecodeBatch,
        out: torch.Tensor,
    ) -> None:
        query, key, value = rotate_qkv(qkv, self.heads, norm, angles[part.positions])
        pool = part.pool
        pool.write(layer, part.rows, part.positions, key, value)
        rows = slice(pool.decode_start, pool.decode_start + len(part.rows))
        keys = pool.first_keys(layer, part.num_keys)[rows, :, 0]
        out.copy_(attend_decode(query, keys, pool.values[layer][rows, :, : part.num_keys], part.bias))


MIN_THREAD_POSITIONS = 1 << 14
"""Positions attended to by one thread; fewer are not worth waking another."""


class NativeOps:
    """`Ops` on a CPU, in fp32 or bf16, with SiLU.

    Args:
        library: of `kernels.compiled`, for these heads.
        heads: of attention.
        eps: of the norms.
        vector: floats per vector, as compiled.
    """

    takes_any_rows: bool = True
    norm_dtype: torch.dtype | None = torch.float32

    def __init__(self, library: ctypes.CDLL, heads: AttentionHeads, eps: float, vector: int):
        self.library, self.heads, self.eps, self.block = library, heads, eps, vector
        self._pool: ThreadPoolExecutor | None = None

    @classmethod
    def create(
        cls, heads: AttentionHeads, eps: float, activation: str, widths: list[int], like: torch.Tensor
    ) -> NativeOps | None:
        """For a model of these heads, these widths of rows, and weights like that one; None where there are no kernels."""
        vector = kernels.vector_of(heads.size)
        if like.device.type != "cpu" or like.dtype not in (torch.float32, torch.bfloat16) or activation != "silu":
            return None
        if not vector or any(width % vector for width in widths):
            return None
        library = kernels.compiled("decode", heads.queries // heads.keys, heads.size, like.dtype == torch.bfloat16)
        return None if library is None else cls(library, heads, eps, vector)

    def add_norm(self, x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:  # noqa: D102
        out = torch.empty_like(x)
        added = None if more is None else more.data_ptr()
        self.library.add_norm(x.data_ptr(), added, weight.data_ptr(), self.eps, out.data_ptr(), *x.shape)
        return out

    def gate(self, both: torch.Tensor) -> torch.Tensor:  # noqa: D102
        out = both.new_empty(len(both), both.shape[1] // 2)
        self.library.gate(both.data_ptr(), out.data_ptr(), *out.shape)
        return out

    def attend(  # noqa: D102
        self,
        layer: int,
        qkv: torch.Tensor,
        norm: torch.Tensor | None,
        angles: torch.Tensor,
        part: DecodeBatch,
        out: torch.Tensor,
    ) -> None:
        pool, heads = part.pool, self.heads
        of_norm = None if norm is None else norm.data_ptr()
        keys, values = pool.keys[layer].data_ptr(), pool.values[layer].data_ptr()

        def some(first: int, count: int) -> None:
            self.library.attend(
                qkv[first].data_ptr(),
                of_norm,
                heads.eps,
                angles.data_ptr(),
                heads.size**-0.5,
                keys,
                values,
                *(
                    column[first:].data_ptr()
                    for column in (part.rows, part.positions, part.sources, part.shared_prefixes)
                ),
                out[first].data_ptr(),
                count,
                heads.keys,
                pool.capacity,
            )

        self._split(some, [*part.starts, len(part.rows)], len(part.rows) * part.longest)

    def _split(self, do: Callable[[int, int], None], edges: list[int], work: int) -> None:
        """`do(first, count)` for all rows, in as many threads as are allowed and worth while; cut at some of the edges."""
        parts = min(torch.get_num_threads(), work // MIN_THREAD_POSITIONS + 1, len(edges) - 1)
        if parts == 1:
            return do(0, edges[-1])
        if self._pool is None:
            self._pool = ThreadPoolExecutor(torch.get_num_threads(), "rove-decode")
        cuts = [edges[(len(edges) - 1) * i // parts] for i in range(parts + 1)]
        for done in [self._pool.submit(do, a, b - a) for a, b in pairwise(cuts)]:
            done.result()
