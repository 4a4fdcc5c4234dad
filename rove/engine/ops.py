"""What a step of the decoder does between its matrix products, in PyTorch; `rove.engine.native` does the same on CPUs, faster.

Axes: N tokens, B rows, H query heads, K key/value heads, d head size, P positions.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch.nn.functional import gelu, rms_norm, silu

from rove.engine.batch import Decoded
from rove.models.attention import attend_decode


class Heads(NamedTuple):
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
    anywhere: bool
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
        part: Decoded,
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


def turned(
    qkv: torch.Tensor, heads: Heads, norm: torch.Tensor | None, angles: torch.Tensor
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
    anywhere: bool = False
    norm_dtype: torch.dtype | None = None

    def __init__(self, heads: Heads, eps: float, activation: str):
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
        part: Decoded,
        out: torch.Tensor,
    ) -> None:
        query, key, value = turned(qkv, self.heads, norm, angles[part.positions])
        pool = part.pool
        pool.write(layer, part.rows, part.positions, key, value)
        rows = slice(pool.first, pool.first + len(part.rows))
        keys = pool.keys_to(layer, part.keys)[rows, :, 0]
        out.copy_(attend_decode(query, keys, pool.values[layer][rows, :, : part.keys], part.bias))
