"""Element-wise work and decode attention between the matrix products of the decoder, in PyTorch or in C.

Axes: N tokens, B tokens of one pool, H query heads, K key/value heads, d head size, P positions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch.nn.functional import gelu, rms_norm, silu

from rove.engine.batch import DecodeBatch
from rove.models import kernels
from rove.models.attention import attend_decode
from rove.models.kernels import kernel_threads, pointers


class AttentionHeads(NamedTuple):
    """Shape of attention."""

    queries: int
    keys: int
    size: int
    eps: float
    """Epsilon of the query and key norms, if there are any."""


class Ops(Protocol):
    """Element-wise work and decode attention."""

    block: int
    """Positions per key block of the cache; see `CacheShape.key_block`."""
    takes_any_rows: bool
    """Whether decoded rows may be anywhere in their pool, with several tokens per sequence; else they must be contiguous and
    in order, with one token each."""
    norm_dtype: torch.dtype | None
    """Type of norm weights; None: the model's."""

    def add_norm(self, x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        """Add `more` to x [N, D] in place; return the RMS-normed x times `weight` [D]."""
        ...

    def gate(self, both: torch.Tensor) -> torch.Tensor:
        """Return activation(gates) · inputs: [N, 2 · D] → [N, D]."""
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
        """Write keys and values of new tokens to the cache, and their attention outputs to `out`.

        Args:
            qkv: [B, H + 2 · K, d] before norm and rotation.
            norm: [H + K, d] weights of the query and key norms, or None.
            angles: [P, d / 2] complex rotation of each position.
        """
        ...


def rotate_qkv(
    qkv: torch.Tensor, heads: AttentionHeads, norm: torch.Tensor | None, angles: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries [N, H, d] (normed, rotated by angles [N, d / 2], scaled), keys [N, K, d] (normed, rotated) and values."""
    both, value = qkv[:, : heads.queries + heads.keys], qkv[:, heads.queries + heads.keys :]
    if norm is not None:
        both = (rms_norm(both.to(norm.dtype), (heads.size,), None, heads.eps) * norm).to(qkv.dtype)
    angles = angles[:, None]
    pairs = torch.view_as_complex(both.float().unflatten(-1, (-1, 2)).contiguous())
    query = torch.view_as_real(pairs[:, : heads.queries] * (angles * heads.size**-0.5)).flatten(-2).to(qkv.dtype)
    key = torch.view_as_real(pairs[:, heads.queries :] * angles).flatten(-2).to(qkv.dtype)
    return query, key, value


class TorchOps:
    """`Ops` on any device."""

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


INT64_BYTES = 8
MIN_THREAD_POSITIONS = 1 << 14
"""Attended positions per thread; waking another thread for fewer costs more than it saves."""


class NativeOps:
    """`Ops` in C on a CPU, in fp32 or bf16, with SiLU."""

    takes_any_rows: bool = True
    norm_dtype: torch.dtype | None = torch.float32

    def __init__(self, library: ctypes.CDLL, heads: AttentionHeads, eps: float, vector: int):
        self.library, self.heads, self.eps, self.block = library, heads, eps, vector

    @classmethod
    def create(
        cls, heads: AttentionHeads, eps: float, activation: str, widths: list[int], like: torch.Tensor
    ) -> NativeOps | None:
        """Return ops for these heads, row widths and weight type and device; None if no kernels are available."""
        vector = kernels.vector_floats(heads.size)
        if like.device.type != "cpu" or like.dtype not in (torch.float32, torch.bfloat16) or activation != "silu":
            return None
        if not vector or any(width % vector for width in widths):
            return None
        library = kernels.load_kernels("decode", heads.queries // heads.keys, heads.size, like.dtype == torch.bfloat16)
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
        norms, positions, keys, values = pointers(norm, angles, pool.keys[layer], pool.values[layer])
        first_qkv, first_out, qkv_bytes, out_bytes = qkv.data_ptr(), out.data_ptr(), qkv[0].nbytes, out[0].nbytes

        def some(first: int, count: int) -> None:
            columns = (address + INT64_BYTES * first for address in part.addresses)
            self.library.attend(
                first_qkv + qkv_bytes * first,
                norms,
                heads.eps,
                positions,
                heads.size**-0.5,
                keys,
                values,
                *columns,
                first_out + out_bytes * first,
                count,
                heads.keys,
                pool.capacity,
            )

        self._split(some, [*part.starts, len(part.rows)], len(part.rows) * part.longest)

    def _split(self, do: Callable[[int, int], None], edges: list[int], work: int) -> None:
        """Call `do(first, count)` for all rows in parallel threads, cut at some of the `edges`."""
        parts = min(torch.get_num_threads(), work // MIN_THREAD_POSITIONS + 1, len(edges) - 1)
        if parts == 1:
            return do(0, edges[-1])
        cuts = [edges[(len(edges) - 1) * i // parts] for i in range(parts + 1)]
        for done in [kernel_threads().submit(do, a, b - a) for a, b in pairwise(cuts)]:
            done.result()
