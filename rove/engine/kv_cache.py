"""Keys and values: of the rows being decoded now, and of conversations that may go on.

Axes: L layers, 2 keys and values, B rows, K key/value heads, T positions, d head size.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

import torch

GROWTH = 64
"""Positions added when a batch outgrows its cache."""


class BatchCache:
    """The cache a transformers model reads and writes in one batch; row b holds positions 0 … length−1 of its sequence.

    Set `positions` [B, n] before a forward pass over n tokens per row. Positions past a row's end may hold garbage: they
    are masked until the row grows over them.
    """

    def __init__(
        self, layers: int, rows: int, heads: int, size: int, capacity: int, dtype: torch.dtype, device: torch.device
    ):
        self.kv = torch.zeros(layers, 2, rows, heads, capacity, size, dtype=dtype, device=device)
        self.positions = torch.zeros(rows, 0, dtype=torch.long, device=device)
        self.used = 0
        self._start: int | None = None

    def rows(self, start: int, stop: int) -> BatchCache:
        """A view of some of the rows: writing to it writes here."""
        view = object.__new__(BatchCache)
        view.kv = self.kv[:, :, start:stop]
        view.positions = self.positions[start:stop]
        view.used = self.used
        view._start = None
        return view

    def place(self, positions: torch.Tensor) -> torch.Tensor:
        """Announce the positions [B, n] of the next tokens; returns the mask [B, 1, n, T] of what each may see."""
        self.positions = positions
        aligned = positions.shape[1] > 1 and bool((positions == positions[:1]).all())
        self._start = int(positions[0, 0]) if aligned else None
        self.used = max(self.used, int(positions.max()) + 1)
        if self.used > self.kv.shape[4]:
            self._grow(self.used - self.kv.shape[4])
        keys = torch.arange(self.used, device=positions.device)
        return (keys <= positions[:, :, None])[:, None]

    def _grow(self, by: int) -> None:
        shape = list(self.kv.shape)
        shape[4] = max(by, GROWTH)
        self.kv = torch.cat([self.kv, self.kv.new_zeros(shape)], dim=4)

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values [B, K, n, d] of a layer; return all of them [B, K, T, d]."""
        kv = self.kv[layer_idx]
        rows, heads, new, _ = key.shape
        if self._start is not None:
            kv[0, :, :, self._start : self._start + new] = key
            kv[1, :, :, self._start : self._start + new] = value
        else:
            where = (
                torch.arange(rows, device=key.device)[:, None, None],
                torch.arange(heads, device=key.device)[None, :, None],
                self.positions[:, None, :],
            )
            kv[0].index_put_(where, key)
            kv[1].index_put_(where, value)
        return kv[0, :, :, : self.used], kv[1, :, :, : self.used]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions in use."""
        return self.used

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all rows but these."""
        self.kv = self.kv.index_select(2, rows)


def key_of(ids: Sequence[int]) -> bytes:
    """A dictionary key for a token sequence."""
    return array("q", ids).tobytes()


class KVStore:
    """Keys and values of finished turns, found again by their exact tokens; the least recently kept go first.

    Args:
        max_tokens: most positions kept in all.
    """

    def __init__(self, max_tokens: int):
        self.max_tokens = max_tokens
        self.tokens = 0
        self._kept: OrderedDict[bytes, torch.Tensor] = OrderedDict()

    def put(self, ids: Sequence[int], kv: torch.Tensor) -> None:
        """Keep the cache [L, 2, K, T, d] of `ids`."""
        self.take(ids)
        self._kept[key_of(ids)] = kv
        self.tokens += kv.shape[3]
        while self.tokens > self.max_tokens and self._kept:
            _, dropped = self._kept.popitem(last=False)
            self.tokens -= dropped.shape[3]

    def take(self, ids: Sequence[int]) -> torch.Tensor | None:
        """The cache of `ids`, removed from the store; None when it is not there."""
        kv = self._kept.pop(key_of(ids), None)
        if kv is not None:
            self.tokens -= kv.shape[3]
        return kv

    def clear(self) -> None:
        """Forget everything (the weights changed)."""
        self._kept.clear()
        self.tokens = 0
