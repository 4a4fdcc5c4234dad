"""Element-wise operations and decode attention between the matrix products of the decoder, in PyTorch or in C
(docs/decisions/kernels.md).

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
    """Element-wise operations and decode attention."""

    block: int
    """Positions per key block of the cache; see `CacheShape.key_block`."""
    takes_any_rows: bool
    """Whether decoded rows may be anywhere in their pool, with several tokens per sequence. If not, rows must be contiguous and
    in order, with one token each."""
    norm_dtype: torch.dtype | None
    """Type of norm weights; None means the model's type."""

    def add_norm(self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
        """Add `residual` to x [N, D] in place; return the RMS-normed x times `weight` [D]."""
        ...

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
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
            angles: [P, d / 2] complex rotation of each of the P positions of the context; `part.positions` selects rows.
            part: The tokens of the batch: their rows in the cache and their positions.
            out: [B, H, d] attention outputs, which are overwritten.
        """
        ...


def rotate_qkv(
    qkv: torch.Tensor, heads: AttentionHeads, norm: torch.Tensor | None, angles: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries [N, H, d] (normed, rotated by angles [N, d / 2], scaled), keys [N, K, d] (normed, rotated) and values."""
    num_rotated = heads.queries + heads.keys
    rotated, value = qkv[:, :num_rotated], qkv[:, num_rotated:]
    if norm is not None:
        normed = rms_norm(rotated.to(norm.dtype), (heads.size,), None, heads.eps)
        rotated = (normed * norm).to(qkv.dtype)
    angles = angles[:, None]
    # The decoder stores rotated dimensions as neighbors (`interleave_halves`), so a rotation is one complex product.
    pairs = torch.view_as_complex(rotated.float().unflatten(-1, (-1, 2)).contiguous())
    # The attention scale is part of the queries' angles: a separate product would pass over them once more.
    query = torch.view_as_real(pairs[:, : heads.queries] * (angles * heads.size**-0.5))
    key = torch.view_as_real(pairs[:, heads.queries :] * angles)
    return query.flatten(-2).to(qkv.dtype), key.flatten(-2).to(qkv.dtype), value


class TorchOps:
    """`Ops` on any device."""

    block: int = 0
    takes_any_rows: bool = False
    norm_dtype: torch.dtype | None = None

    def __init__(self, heads: AttentionHeads, eps: float, activation: str):
        self.heads, self.eps, self.activation = heads, eps, activation

    def add_norm(  # noqa: D102
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor
    ) -> torch.Tensor:
        if residual is not None:
            x += residual
        return rms_norm(x.to(weight.dtype), x.shape[-1:], weight, self.eps).to(x.dtype)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:  # noqa: D102
        gate, up = gate_up.chunk(2, dim=-1)
        if self.activation == "silu":
            return silu(gate) * up
        approximation = "tanh" if self.activation == "gelu_pytorch_tanh" else "none"
        return gelu(gate, approximate=approximation) * up

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
        # A slice of rows is a view; indices would copy the keys and values of the whole batch in every layer.
        rows = slice(pool.decode_start, pool.decode_start + len(part.rows))
        keys = pool.first_keys(layer, part.num_keys)[rows, :, 0]
        values = pool.values[layer][rows, :, : part.num_keys]
        out.copy_(attend_decode(query, keys, values, part.bias))


INT64_BYTES = 8
MIN_THREAD_POSITIONS = 1 << 14
"""Minimum number of attended positions per thread; waking a thread for fewer positions costs more than it saves."""


class NativeOps:
    """`Ops` in C on a CPU, in fp32 or bf16, with SiLU."""

    takes_any_rows: bool = True
    norm_dtype: torch.dtype | None = torch.float32

    def __init__(self, library: ctypes.CDLL, heads: AttentionHeads, eps: float, vector: int):
        self.library, self.heads, self.eps, self.block = library, heads, eps, vector

    @classmethod
    def create(
        cls, heads: AttentionHeads, eps: float, activation: str, widths: list[int], weights: torch.Tensor
    ) -> NativeOps | None:
        """Return ops for these heads, row widths, and the type and device of `weights`; None if no kernels are available."""
        vector = kernels.vector_floats(heads.size)
        if weights.device.type != "cpu" or weights.dtype not in (torch.float32, torch.bfloat16) or activation != "silu":
            return None
        # The loops of the kernels take whole vectors only.
        if not vector or any(width % vector for width in widths):
            return None
        is_bf16 = weights.dtype == torch.bfloat16
        library = kernels.load_kernels("decode", heads.queries // heads.keys, heads.size, is_bf16)
        return None if library is None else cls(library, heads, eps, vector)

    def add_norm(  # noqa: D102
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor
    ) -> torch.Tensor:
        out = torch.empty_like(x)
        added = None if residual is None else residual.data_ptr()
        self.library.add_norm(x.data_ptr(), added, weight.data_ptr(), self.eps, out.data_ptr(), *x.shape)
        return out

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:  # noqa: D102
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        self.library.gate(gate_up.data_ptr(), out.data_ptr(), *out.shape)
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
        norms, rotations, keys, values = pointers(norm, angles, pool.keys[layer], pool.values[layer])
        first_qkv, qkv_bytes = qkv.data_ptr(), qkv[0].nbytes
        first_out, out_bytes = out.data_ptr(), out[0].nbytes

        # Addresses are computed as integers: slices of the tensors would be new objects for every layer and step.
        def attend_rows(first: int, count: int) -> None:
            columns = (address + INT64_BYTES * first for address in part.addresses)
            self.library.attend(
                first_qkv + qkv_bytes * first,
                norms,
                heads.eps,
                rotations,
                heads.size**-0.5,
                keys,
                values,
                *columns,
                first_out + out_bytes * first,
                count,
                heads.keys,
                pool.capacity,
            )

        # Tokens of one sequence stay in one thread: each reads the keys that the ones before it wrote.
        _run_parallel(attend_rows, [*part.starts, len(part.rows)], len(part.rows) * part.longest)


def _run_parallel(compute: Callable[[int, int], None], edges: list[int], work: int) -> None:
    """Call `compute(first, count)` in parallel threads that together cover all rows, which are divided at some of the `edges`."""
    parts = min(torch.get_num_threads(), work // MIN_THREAD_POSITIONS + 1, len(edges) - 1)
    if parts == 1:
        return compute(0, edges[-1])
    cuts = [edges[(len(edges) - 1) * i // parts] for i in range(parts + 1)]
    running = [kernel_threads().submit(compute, start, end - start) for start, end in pairwise(cuts)]
    for future in running:
        future.result()
