"""`Ops` by the decode kernels of `rove.kernels`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch

from rove import kernels
from rove.engine.batch import Decoded
from rove.engine.ops import Heads

WORTH_SPLITTING = 1 << 14
"""Positions attended to by one thread; fewer are not worth waking another."""


class NativeOps:
    """`Ops` on a CPU, in fp32 or bf16, with SiLU.

    Args:
        library: of `kernels.compiled`, for these heads.
        heads: of attention.
        eps: of the norms.
        vector: floats per vector, as compiled.
    """

    anywhere: bool = True
    norm_dtype: torch.dtype | None = torch.float32

    def __init__(self, library: ctypes.CDLL, heads: Heads, eps: float, vector: int):
        self.library, self.heads, self.eps, self.block = library, heads, eps, vector
        self._pool: ThreadPoolExecutor | None = None

    @classmethod
    def of(cls, heads: Heads, eps: float, activation: str, widths: list[int], like: torch.Tensor) -> NativeOps | None:
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
        part: Decoded,
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
                *(column[first:].data_ptr() for column in (part.rows, part.positions, part.sources, part.shared)),
                out[first].data_ptr(),
                count,
                heads.keys,
                pool.capacity,
            )

        self._split(some, [*part.starts, len(part.rows)], len(part.rows) * part.longest)

    def _split(self, do: Callable[[int, int], None], edges: list[int], work: int) -> None:
        """`do(first, count)` for all rows, in as many threads as are allowed and worth while; cut at some of the edges."""
        parts = min(torch.get_num_threads(), work // WORTH_SPLITTING + 1, len(edges) - 1)
        if parts == 1:
            return do(0, edges[-1])
        if self._pool is None:
            self._pool = ThreadPoolExecutor(torch.get_num_threads(), "rove-decode")
        cuts = [edges[(len(edges) - 1) * i // parts] for i in range(parts + 1)]
        for done in [self._pool.submit(do, a, b - a) for a, b in pairwise(cuts)]:
            done.result()
