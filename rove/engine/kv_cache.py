"""Keys and values: where every sequence's lie, what is kept for later, and how much memory all of it may take.

Axes: R rows, K key/value heads, C capacity in positions, d head size, w positions in a block of keys. Keys are stored
transposed within blocks, [R, K, C / w, d, w]: so both products of decode attention read memory in order, which on a CPU makes
them up to three times as fast.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from rove.engine.prefix_index import PrefixIndex

SMALLEST = 64
"""Positions of the smallest rows."""


class Shape(NamedTuple):
    """What one position of one sequence takes."""

    layers: int
    heads: int
    size: int
    dtype: torch.dtype
    device: torch.device
    convolutions: frozenset[int] = frozenset()
    """Layers that keep the input of their convolution: one head of values, no keys."""
    width: int = 0
    """Of that input."""
    block: int = 0
    """Positions in a block of keys, a divisor of 16; 0 = a row is one block."""

    def of(self, layer: int) -> tuple[int, int, int]:
        """K and the sizes of a key and of a value of one layer."""
        return (1, 0, self.width) if layer in self.convolutions else (self.heads, self.size, self.size)

    @property
    def bytes(self) -> int:
        """Of all layers' keys and values."""
        kept = (heads * (key + value) for heads, key, value in map(self.of, range(self.layers)))
        return sum(kept) * self.dtype.itemsize


def capacity_for(length: int) -> int:
    """The smallest row size of 64 · 2^k · {1, 1.25, 1.5, 1.75} that holds `length` positions: at most a fifth is empty."""
    step = max(SMALLEST, 1 << (max(length, 1).bit_length() - 1)) // 4
    return max(SMALLEST, -(-length // step) * step)


@dataclass(eq=False)
class Slot:
    """The row of one sequence; it may be moved to another index of its pool."""

    pool: Pool
    index: int
    filled: int = 0
    """Positions 0 … filled−1 are computed; what lies behind them may hold any finite garbage."""
    target: int = 0
    """Positions that will be computed in any case, because the sequence is being read in."""
    family: int = 0
    """Slots of one family have the same content in their first `common` positions; 0 = none is known to."""
    common: int = 0
    scope: int = 0
    """Whose keys and values they are (an adapter's, 0 = the model's own): only the same scope's are of use to a sequence."""
    outdated: bool = False
    """Computed with older weights, in part at least: of use to its own sequence alone, and not when that has ended."""

    def join(self, source: Slot, length: int) -> None:
        """Take note that the first `length` positions were copied from `source`."""
        if length > source.common:  # more than it has in common with others
            source.family, source.common = next(_families), length
        self.family, self.common = source.family, length


_families = itertools.count(1)


class Pool:
    """Rows of one capacity. Those that are decoded together stand together, `decoding` rows from row `first` on."""

    def __init__(self, shape: Shape, capacity: int, budget: int):
        self.shape, self.capacity = shape, capacity
        self.row_bytes = shape.bytes * capacity
        # A CPU lends memory when it is first written to: all there may ever be is asked for at once, and growing is free.
        self._room = budget // self.row_bytes if shape.device.type == "cpu" else 0
        self.slots: list[Slot | None] = []
        self.used = 0
        """Rows with a slot."""
        self.first = self.decoding = 0
        sizes = [shape.of(layer) for layer in range(shape.layers)]
        self.block = shape.block or capacity
        """Positions in a block of keys."""
        self.keys = [
            _zeros((self._room, heads, capacity // self.block, size, self.block), shape) for heads, size, _ in sizes
        ]
        self.values = [_zeros((self._room, heads, capacity, size), shape) for heads, _, size in sizes]

    @property
    def free(self) -> int:
        """Rows that nobody uses."""
        return len(self.slots) - self.used

    def take(self) -> Slot:
        """The first free row; there must be one."""
        index = self.slots.index(None)
        slot = self.slots[index] = Slot(self, index)
        self.used += 1
        return slot

    def give_back(self, slot: Slot) -> None:
        """Nobody uses this one's row any more."""
        self.slots[slot.index] = None
        self.used -= 1

    def keys_to(self, layer: int, length: int) -> torch.Tensor:
        """At least the first `length` keys of all rows, where they are: [R, K, blocks, d, positions of a block]."""
        return self.keys[layer][:, :, : -(-length // self.block), :, : max(length, self.shape.block)]

    def write(
        self, layer: int, rows: torch.Tensor, places: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Put keys and values [N, K, d] into rows [N], at positions [N]."""
        self.keys[layer][rows, :, places // self.block, :, places % self.block] = key
        self.values[layer][rows, :, places] = value

    def resize(self, rows: int) -> None:
        """Make it `rows` rows long, moving those in use to the front; they must fit."""
        if len(self.slots) < rows <= len(self.keys[0]):
            self.slots += [None] * (rows - len(self.slots))
            return
        used = [slot for slot in self.slots if slot is not None]
        order = torch.tensor([slot.index for slot in used], dtype=torch.long, device=self.shape.device)
        for kind in (self.keys, self.values):
            for layer, old in enumerate(kind):  # one by one: only one layer is ever there twice
                new = _zeros((max(rows, self._room), *old.shape[1:]), self.shape)
                if used:
                    torch.index_select(old, 0, order, out=new[: len(used)])
                kind[layer] = new
        self.slots = [*used, *[None] * (rows - len(used))]
        for i, slot in enumerate(used):
            slot.index = i

    def arrange(self, slots: Sequence[Slot]) -> None:
        """Bring these slots, all of this pool, together, where that takes the fewest moves."""
        indices = sorted(slot.index for slot in slots)
        self.first, self.decoding = _window(indices, len(self.slots)), len(slots)
        window = range(self.first, self.first + self.decoding)
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
            for part in (self.keys_to(layer, filled), values[:, :, :filled]):
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


def _zeros(shape: tuple[int, ...], kind: Shape) -> torch.Tensor:
    """Zeros (garbage might be NaN, which no mask hides); on a CPU no memory is touched before it is written to."""
    if kind.device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=kind.dtype, device=kind.device)
    length = math.prod(shape) * kind.dtype.itemsize
    return torch.from_numpy(np.zeros(length, dtype=np.uint8)).view(kind.dtype).view(shape)


def copy_row(source: Slot, to: Slot, length: int) -> None:
    """Copy the first `length` positions of a sequence into another slot, of whatever pool."""
    a, b = source.pool, to.pool
    for layer in range(a.shape.layers):
        b.keys_to(layer, length)[to.index] = a.keys_to(layer, length)[source.index]
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

    def __init__(self, shape: Shape, budget: int, rows: int):
        self.shape, self.budget, self.rows = shape, budget, rows
        self.longest = budget // shape.bytes
        """Positions that the budget holds."""
        self.pools: dict[int, Pool] = {}
        self.kept: OrderedDict[Slot, None] = OrderedDict()
        self.index: PrefixIndex[Slot] = PrefixIndex()

    @property
    def bytes(self) -> int:
        """Allocated now."""
        return sum(len(pool.slots) * pool.row_bytes for pool in self.pools.values())

    @property
    def used(self) -> int:
        """Rows of living and kept sequences."""
        return sum(pool.used for pool in self.pools.values())

    def can_ever_hold(self, length: int) -> bool:
        """Whether a sequence of this length fits when it is alone."""
        return capacity_for(length) <= self.longest

    def take(self, length: int, spare: Slot | None = None, expected: int = 1) -> Slot | None:
        """A row with room for `length` positions; None when that takes memory that living sequences use.

        Args:
            length: positions.
            spare: a kept slot that must not be given up for it.
            expected: how many such rows are likely to be wanted; the pool grows by as many if it can.
        """
        capacity = capacity_for(length)
        if capacity not in self.pools:
            self.pools[capacity] = Pool(self.shape, capacity, self.budget)
        pool = self.pools[capacity]
        while self.used > self.rows and self._evict(pool, spare):
            pass
        while not pool.free:
            affordable = (self.budget - self.bytes) // pool.row_bytes
            if affordable > 0:
                rows = len(pool.slots)
                pool.resize(rows + min(affordable, max(expected, rows // 2, 1)))
            elif not self._trim() and not self._evict(pool, spare):
                return None
        return pool.take()

    def _trim(self) -> bool:
        """Give back the rows nobody uses; whether there were any."""
        loose = [pool for pool in self.pools.values() if pool.free]
        for pool in loose:
            pool.resize(pool.used)
        return bool(loose)

    def _evict(self, pool: Pool, spare: Slot | None) -> bool:
        """Free a kept row, or an eighth of all when the memory must come from other pools (moving it is dear)."""
        old = [slot for slot in self.kept if slot is not spare]
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
        larger = self.take(length)
        if larger is not None:
            copy_row(slot, larger, slot.filled)
            larger.target, larger.family, larger.common = slot.target, slot.family, slot.common
            larger.scope, larger.outdated = slot.scope, slot.outdated
            self.free(slot)
        return larger

    def keep(self, slot: Slot, tokens: Sequence[int]) -> None:
        """A sequence has ended: `tokens` are those of its filled positions."""
        if not slot.filled or slot.outdated:
            return self.free(slot)
        slot.target = 0
        self.kept[slot] = None
        self.index.add(tokens[: slot.filled], slot, slot.scope)

    def outdate(self, slot: Slot) -> None:
        """The weights have changed beneath a sequence that goes on: nobody else may find what was computed for it."""
        self.index.remove(slot)
        slot.outdated = True

    def reuse(self, slot: Slot) -> None:
        """A kept slot goes on living."""
        del self.kept[slot]
        self.index.remove(slot)

    def free(self, slot: Slot) -> None:
        """Give a slot back, kept or not."""
        self.kept.pop(slot, None)
        self.index.remove(slot)
        slot.pool.give_back(slot)

    def forget(self, release: bool = False, scope: int | None = None) -> None:
        """Drop what is kept, of one scope or (None) of all; with `release` also the memory it took, which otherwise is there for
        those to come."""
        for slot in [slot for slot in self.kept if scope is None or slot.scope == scope]:
            self.free(slot)
        if release:
            self._trim()
