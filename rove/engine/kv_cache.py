"""Keys and values: where every sequence's lie, what is kept for later, and how much memory all of it may take.

Axes: R rows, K key/value heads, C capacity in positions, d head size, w positions in a block of keys. Keys are stored
transposed within blocks, [R, K, C / w, d, w]: so both products of decode attention read memory in order, which on a CPU makes
them up to three times as fast.
"""

from __future__ import annotations

import itertools
import math
import sys
from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch

T = TypeVar("T")
TOKEN_BYTES = array("I").itemsize
"""Bytes of a packed token."""


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences of one type share."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # a[:low] is shared, a[:high] is not
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class PrefixIndex(Generic[T]):
    """Values under token sequences, kept in dictionary order: who shares most with a sequence stands next to it.

    Sequences of different scopes share nothing, whatever their tokens.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[int, bytes, int, T]] = []
        self._where: dict[T, tuple[int, bytes, int]] = {}
        self._serial = count()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, tokens: Sequence[int], value: T, scope: int = 0) -> None:
        """Put `value` (hashable) under these tokens, and under no others any more."""
        self.remove(value)
        key = (scope, _packed(tokens), next(self._serial))  # the serial number decides before values are ever compared
        self._where[value] = key
        insort(self._entries, (*key, value))

    def remove(self, value: T) -> None:
        """Forget `value`, if it is there."""
        key = self._where.pop(value, None)
        if key is not None:
            del self._entries[bisect_left(self._entries, key)]

    def nearest(self, tokens: Sequence[int], scope: int = 0) -> list[tuple[int, T]]:
        """(shared tokens, value) of the neighbours of a sequence; none shares more than the best of these."""
        wanted = _packed(tokens)
        i = bisect_left(self._entries, (scope, wanted, -1))
        near = self._entries[max(0, i - 1) : i + 1]
        return [(common_prefix(wanted, key) // TOKEN_BYTES, value) for other, key, _, value in near if other == scope]


def _packed(tokens: Sequence[int]) -> bytes:
    """Bytes in the same order as the tokens, and many times faster to compare."""
    packed = array("I", tokens)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


MIN_CAPACITY = 64
"""Positions of the smallest rows."""


class CacheShape(NamedTuple):
    """What one position of one sequence takes."""

    layers: int
    kv_heads: int
    head_size: int
    dtype: torch.dtype
    device: torch.device
    conv_layers: frozenset[int] = frozenset()
    """Layers that keep the input of their convolution: one head of values, no keys."""
    conv_width: int = 0
    """Of that input."""
    key_block: int = 0
    """Positions in a block of keys, a divisor of 16; 0 = a row is one block."""

    def layer_shape(self, layer: int) -> tuple[int, int, int]:
        """K and the sizes of a key and of a value of one layer."""
        return (1, 0, self.conv_width) if layer in self.conv_layers else (self.kv_heads, self.head_size, self.head_size)

    @property
    def position_bytes(self) -> int:
        """Of all layers' keys and values."""
        kept = (heads * (key + value) for heads, key, value in map(self.layer_shape, range(self.layers)))
        return sum(kept) * self.dtype.itemsize


def row_capacity(length: int) -> int:
    """The smallest row size of 64 · 2^k · {1, 1.25, 1.5, 1.75} that holds `length` positions: at most a fifth is empty."""
    step = max(MIN_CAPACITY, 1 << (max(length, 1).bit_length() - 1)) // 4
    return max(MIN_CAPACITY, -(-length // step) * step)


@dataclass(eq=False)
class Slot:
    """The row of one sequence; it may be moved to another index of its pool."""

    pool: Pool
    index: int
    filled: int = 0
    """Positions 0 … filled−1 are computed; what lies behind them may hold any finite garbage."""
    target: int = 0
    """Positions that will be computed in any case, because the sequence is being read in."""
    prefix_group: int = 0
    """Slots of one family have the same content in their first `common` positions; 0 = none is known to."""
    shared_prefix: int = 0
    scope: int = 0
    """Whose keys and values they are (an adapter's, 0 = the model's own): only the same scope's are of use to a sequence."""
    outdated: bool = False
    """Computed with older weights, in part at least: of use to its own sequence alone, and not when that has ended."""

    def share_prefix(self, source: Slot, length: int) -> None:
        """Take note that the first `length` positions were copied from `source`."""
        if length > source.shared_prefix:  # more than it has in common with others
            source.prefix_group, source.shared_prefix = next(_prefix_groups), length
        self.prefix_group, self.shared_prefix = source.prefix_group, length


_prefix_groups = itertools.count(1)


class Pool:
    """Rows of one capacity. Those that are decoded together stand together, `decoding` rows from row `first` on."""

    def __init__(self, shape: CacheShape, capacity: int, budget: int):
        self.shape, self.capacity = shape, capacity
        self.row_bytes = shape.position_bytes * capacity
        # A CPU lends memory when it is first written to: all there may ever be is asked for at once, and growing is free.
        self._reserved_rows = budget // self.row_bytes if shape.device.type == "cpu" else 0
        self.slots: list[Slot | None] = []
        self.used_rows = 0
        """Rows with a slot."""
        self.decode_start = self.decode_rows = 0
        sizes = [shape.layer_shape(layer) for layer in range(shape.layers)]
        self.key_block = shape.key_block or capacity
        """Positions in a block of keys."""
        self.keys = [
            _zeros((self._reserved_rows, heads, capacity // self.key_block, size, self.key_block), shape)
            for heads, size, _ in sizes
        ]
        self.values = [_zeros((self._reserved_rows, heads, capacity, size), shape) for heads, _, size in sizes]

    @property
    def free_rows(self) -> int:
        """Rows that nobody uses."""
        return len(self.slots) - self.used_rows

    def allocate(self) -> Slot:
        """The first free row; there must be one."""
        index = self.slots.index(None)
        slot = self.slots[index] = Slot(self, index)
        self.used_rows += 1
        return slot

    def release(self, slot: Slot) -> None:
        """Nobody uses this one's row any more."""
        self.slots[slot.index] = None
        self.used_rows -= 1

    def first_keys(self, layer: int, length: int) -> torch.Tensor:
        """At least the first `length` keys of all rows, where they are: [R, K, blocks, d, positions of a block]."""
        return self.keys[layer][:, :, : -(-length // self.key_block), :, : max(length, self.shape.key_block)]

    def write(
        self, layer: int, rows: torch.Tensor, positions: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Put keys and values [N, K, d] into rows [N], at positions [N]."""
        self.keys[layer][rows, :, positions // self.key_block, :, positions % self.key_block] = key
        self.values[layer][rows, :, positions] = value

    def resize(self, rows: int) -> None:
        """Make it `rows` rows long, moving those in use to the front; they must fit."""
        if len(self.slots) < rows <= len(self.keys[0]):
            self.slots += [None] * (rows - len(self.slots))
            return
        used = [slot for slot in self.slots if slot is not None]
        order = torch.tensor([slot.index for slot in used], dtype=torch.long, device=self.shape.device)
        for kind in (self.keys, self.values):
            for layer, old in enumerate(kind):  # one by one: only one layer is ever there twice
                new = _zeros((max(rows, self._reserved_rows), *old.shape[1:]), self.shape)
                if used:
                    torch.index_select(old, 0, order, out=new[: len(used)])
                kind[layer] = new
        self.slots = [*used, *[None] * (rows - len(used))]
        for i, slot in enumerate(used):
            slot.index = i

    def make_contiguous(self, slots: Sequence[Slot]) -> None:
        """Bring these slots, all of this pool, together, where that takes the fewest moves."""
        indices = sorted(slot.index for slot in slots)
        self.decode_start, self.decode_rows = _window(indices, len(self.slots)), len(slots)
        window = range(self.decode_start, self.decode_start + self.decode_rows)
        chosen = set(indices)
        outside = [i for i in indices if i not in window]
        holes = [i for i in window if i not in chosen]
        if outside:
            self._swap(holes, outside)

    def _swap(self, holes: Sequence[int], rows: Sequence[int]) -> None:
        used = [i for i in holes if self.slots[i] is not None]
        back = [row for row, hole in zip(rows, holes, strict=True) if self.slots[hole] is not None]
        filled = max(slot.filled for i in [*rows, *used] if (slot := self.slots[i]) is not None)
        to, source = (torch.tensor(x, device=self.shape.device) for x in ([*holes, *back], [*rows, *used]))
        for layer, values in enumerate(self.values):
            for part in (self.first_keys(layer, filled), values[:, :, :filled]):
                part[to] = part[source]
        for hole, row in zip(holes, rows, strict=True):
            self.slots[hole], self.slots[row] = self.slots[row], self.slots[hole]
            for i in (hole, row):
                moved = self.slots[i]
                if moved is not None:
                    moved.index = i


def _window(indices: Sequence[int], rows: int) -> int:
    """Where as many consecutive rows as there are `indices` (ascending) hold most of them."""
    best, first, end = 0, 0, 0
    for i, index in enumerate(indices):
        while end < len(indices) and indices[end] < index + len(indices):
            end += 1
        if end - i > best:
            best, first = end - i, index
    return max(0, min(first, rows - len(indices)))


def _zeros(shape: tuple[int, ...], kind: CacheShape) -> torch.Tensor:
    """Zeros (garbage might be NaN, which no mask hides); on a CPU no memory is touched before it is written to."""
    if kind.device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=kind.dtype, device=kind.device)
    length = math.prod(shape) * kind.dtype.itemsize
    return torch.from_numpy(np.zeros(length, dtype=np.uint8)).view(kind.dtype).view(shape)


def copy_row(source: Slot, to: Slot, length: int) -> None:
    """Copy the first `length` positions of a sequence into another slot, of whatever pool."""
    a, b = source.pool, to.pool
    for layer in range(a.shape.layers):
        b.first_keys(layer, length)[to.index] = a.first_keys(layer, length)[source.index]
        b.values[layer][to.index, :, :length] = a.values[layer][source.index, :, :length]
    to.filled = length


class KVCache:
    """All pools under one budget. A sequence has a slot from its admission on; when it ends, the slot is kept for whatever
    begins with the same tokens, until its memory is needed: the least recently kept goes first.

    Args:
        shape: of one position.
        budget: most bytes of all pools together.
        rows: ended sequences are kept while there are no more than this, the living included.
    """

    def __init__(self, shape: CacheShape, budget: int, max_rows: int):
        self.shape, self.budget, self.max_rows = shape, budget, max_rows
        self.max_positions = budget // shape.position_bytes
        """Positions that the budget holds."""
        self.pools: dict[int, Pool] = {}
        self.reusable: OrderedDict[Slot, None] = OrderedDict()
        self.index: PrefixIndex[Slot] = PrefixIndex()

    @property
    def allocated_bytes(self) -> int:
        """Allocated now."""
        return sum(len(pool.slots) * pool.row_bytes for pool in self.pools.values())

    @property
    def used_rows(self) -> int:
        """Rows of living and kept sequences."""
        return sum(pool.used_rows for pool in self.pools.values())

    def fits(self, length: int) -> bool:
        """Whether a sequence of this length fits when it is alone."""
        return row_capacity(length) <= self.max_positions

    def allocate(self, length: int, protected: Slot | None = None, expected: int = 1) -> Slot | None:
        """A row with room for `length` positions; None when that takes memory that living sequences use.

        Args:
            length: positions.
            spare: a kept slot that must not be given up for it.
            expected: how many such rows are likely to be wanted; the pool grows by as many if it can.
        """
        capacity = row_capacity(length)
        if capacity not in self.pools:
            self.pools[capacity] = Pool(self.shape, capacity, self.budget)
        pool = self.pools[capacity]
        while self.used_rows > self.max_rows and self._evict(pool, protected):
            pass
        while not pool.free_rows:
            affordable = (self.budget - self.allocated_bytes) // pool.row_bytes
            if affordable > 0:
                rows = len(pool.slots)
                pool.resize(rows + min(affordable, max(expected, rows // 2, 1)))
            elif not self._release_free_rows() and not self._evict(pool, protected):
                return None
        return pool.allocate()

    def _release_free_rows(self) -> bool:
        """Give back the rows nobody uses; whether there were any."""
        loose = [pool for pool in self.pools.values() if pool.free_rows]
        for pool in loose:
            pool.resize(pool.used_rows)
        return bool(loose)

    def _evict(self, pool: Pool, protected: Slot | None) -> bool:
        """Free a kept row, or an eighth of all when the memory must come from other pools (moving it is dear)."""
        old = [slot for slot in self.reusable if slot is not protected]
        if old and old[0].pool is pool:
            self.free(old[0])
            return True
        for slot in old[: max(1, len(old) // 8)]:
            self.free(slot)
        return bool(old)

    def grow(self, slot: Slot, length: int) -> Slot | None:
        """A slot with the same content and room for `length` positions, the given one if it has it; None: no memory."""
        if length <= slot.pool.capacity:
            return slot
        larger = self.allocate(length)
        if larger is not None:
            copy_row(slot, larger, slot.filled)
            larger.target, larger.prefix_group, larger.shared_prefix = (
                slot.target,
                slot.prefix_group,
                slot.shared_prefix,
            )
            larger.scope, larger.outdated = slot.scope, slot.outdated
            self.free(slot)
        return larger

    def retire(self, slot: Slot, tokens: Sequence[int]) -> None:
        """A sequence has ended: `tokens` are those of its filled positions."""
        if not slot.filled or slot.outdated:
            return self.free(slot)
        slot.target = 0
        self.reusable[slot] = None
        self.index.add(tokens[: slot.filled], slot, slot.scope)

    def mark_outdated(self, slot: Slot) -> None:
        """The weights have changed beneath a sequence that goes on: nobody else may find what was computed for it."""
        self.index.remove(slot)
        slot.outdated = True

    def reuse(self, slot: Slot) -> None:
        """A kept slot goes on living."""
        del self.reusable[slot]
        self.index.remove(slot)

    def free(self, slot: Slot) -> None:
        """Give a slot back, kept or not."""
        self.reusable.pop(slot, None)
        self.index.remove(slot)
        slot.pool.release(slot)

    def clear(self, release_memory: bool = False, scope: int | None = None) -> None:
        """Drop what is kept, of one scope or (None) of all; with `release` also the memory it took, which otherwise is there for
        those to come."""
        for slot in [slot for slot in self.reusable if scope is None or slot.scope == scope]:
            self.free(slot)
        if release_memory:
            self._release_free_rows()
