"""KV cache: pools of rows by capacity, reuse of ended sequences, and a memory budget.

Axes: R rows, K key/value heads, C capacity in positions, d head size, w positions per key block. Keys are stored transposed
within blocks, [R, K, C / w, d, w], so that both matrix products of decode attention read memory sequentially (up to three times
as fast on a CPU; see docs/decisions/kernels.md).
"""

from __future__ import annotations

import itertools
import math
import mmap
import sys
from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

import torch

T = TypeVar("T")
MAP_NORESERVE = 0x4000
"""Flag of a memory mapping on Linux, for which Python 3.11 has no name. With it, unwritten memory does not count; otherwise, a
fork would fail if neighboring mappings together exceed the machine's memory."""
TOKEN_BYTES = array("I").itemsize
"""Bytes of a packed token."""


def values_per_position(config: Any) -> int:
    """Return the number of values in the keys and values of a token per layer; 0 for models without attention, such as Mamba."""
    queries = getattr(config, "num_attention_heads", None)
    if not queries:
        return 0
    heads = getattr(config, "num_key_value_heads", None) or queries
    size = getattr(config, "head_dim", None) or config.hidden_size // queries
    return 2 * heads * size


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of leading tokens that two sequences of one type share."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # binary search: a[:low] is shared, a[:high] is not
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class PrefixIndex(Generic[T]):
    """Values by token sequence, in lexicographic order, so that the entry with the longest shared prefix is a neighbor of a
    sequence.

    Sequences of different scopes share no prefix. This is a sorted list instead of a radix tree: a few hundred entries of packed
    bytes compare faster in C than tree nodes in Python.

    Example:
        index = PrefixIndex[str]()
        index.add([1, 2, 3], "a")
        index.nearest([1, 2, 9])  # [(2, "a")]
    """

    def __init__(self) -> None:
        self._entries: list[tuple[int, bytes, int, T]] = []
        self._where: dict[T, tuple[int, bytes, int]] = {}
        self._serial = count()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, tokens: Sequence[int], value: T, scope: int = 0) -> None:
        """Store `value` (hashable) under these tokens; an earlier entry of the same value is replaced."""
        self.remove(value)
        key = (scope, _packed(tokens), next(self._serial))  # the serial number decides before values are ever compared
        self._where[value] = key
        insort(self._entries, (*key, value))

    def remove(self, value: T) -> None:
        """Remove `value` if present."""
        key = self._where.pop(value, None)
        if key is not None:
            del self._entries[bisect_left(self._entries, key)]

    def nearest(self, tokens: Sequence[int], scope: int = 0) -> list[tuple[int, T]]:
        """Return (shared tokens, value) of the two neighbors of a sequence; no other entry shares more tokens."""
        packed = _packed(tokens)
        i = bisect_left(self._entries, (scope, packed, -1))
        neighbors = self._entries[max(0, i - 1) : i + 1]
        return [
            (common_prefix(packed, key) // TOKEN_BYTES, value)
            for entry_scope, key, _, value in neighbors
            if entry_scope == scope
        ]


def _packed(tokens: Sequence[int]) -> bytes:
    """Return tokens as big-endian bytes, which sort in the same order as the tokens and compare many times faster."""
    packed = array("I", tokens)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


MIN_CAPACITY = 64
"""Number of positions in the smallest rows."""
MIN_GAIN_DIVISOR, MAX_GAIN_DIVISOR = 32, 8
"""Pools are copied to release free rows only if this makes 1/32 to 1/8 of the budget available; see `_worthwhile_gain`."""


class CacheShape(NamedTuple):
    """Size and placement of one cached position."""

    layers: int
    kv_heads: int
    head_size: int
    dtype: torch.dtype
    device: torch.device
    conv_layers: frozenset[int] = frozenset()
    """Layers that cache the input of a convolution: one head of values, no keys."""
    conv_width: int = 0
    """Width of a convolution's input."""
    key_block: int = 0
    """Positions per key block, a divisor of 16; 0 makes each row a single block."""

    def layer_shape(self, layer: int) -> tuple[int, int, int]:
        """Return K and the sizes of a key and a value of one layer."""
        if layer in self.conv_layers:
            return 1, 0, self.conv_width
        return self.kv_heads, self.head_size, self.head_size

    @property
    def position_bytes(self) -> int:
        """Bytes of one position in all layers."""
        sizes = (heads * (key + value) for heads, key, value in map(self.layer_shape, range(self.layers)))
        return sum(sizes) * self.dtype.itemsize


def row_capacity(length: int) -> int:
    """Return the smallest row size of 64 · 2^k · {1, 1.25, 1.5, 1.75} that holds `length` positions; at most a fifth of it is
    unused.

    Few sizes mean few pools, and the sequences of a pool are decoded by one matrix product.
    """
    step = max(MIN_CAPACITY, 1 << (max(length, 1).bit_length() - 1)) // 4
    return max(MIN_CAPACITY, -(-length // step) * step)


@dataclass(eq=False)
class Slot:
    """The row of one sequence. Pools may move it to another index."""

    pool: Pool
    index: int
    filled: int = 0
    """Positions 0 … filled − 1 are computed; later positions hold arbitrary finite values."""
    target: int = 0
    """Number of positions that prefill will compute; other sequences may wait for them."""
    prefix_group: int = 0
    """Number of the group of slots that have equal content in their first `shared_prefix` positions; 0 means no group."""
    shared_prefix: int = 0
    scope: int = 0
    """Adapter scope (0: the base model); only sequences of the same scope may reuse the content."""
    outdated: bool = False
    """Whether a part of the content was computed with older weights: the slot's own sequence continues with the content, but no
    other sequence may reuse it."""

    def share_prefix(self, source: Slot, length: int) -> None:
        """Record that the first `length` positions were copied from `source`."""
        if length > source.shared_prefix:  # a longer prefix than it shares with its group: start a new group
            source.prefix_group, source.shared_prefix = next(_prefix_groups), length
        self.prefix_group, self.shared_prefix = source.prefix_group, length


_prefix_groups = itertools.count(1)


class Pool:
    """Rows of one capacity. Rows that are decoded together are contiguous: `decode_rows` rows, starting at `decode_start`."""

    def __init__(self, shape: CacheShape, capacity: int, budget: int):
        self.shape, self.capacity = shape, capacity
        self.row_bytes = shape.position_bytes * capacity
        # On a CPU, the kernel maps memory on first write: reserving the whole budget now makes growing free.
        self._reserved_rows = budget // self.row_bytes if shape.device.type == "cpu" else 0
        self.slots: list[Slot | None] = []
        self.used_rows = 0
        """Number of rows with a slot."""
        self.decode_start = self.decode_rows = 0
        sizes = [shape.layer_shape(layer) for layer in range(shape.layers)]
        self.key_block = shape.key_block or capacity
        """Number of positions per key block."""
        self.keys = [
            _zeros((self._reserved_rows, heads, capacity // self.key_block, size, self.key_block), shape)
            for heads, size, _ in sizes
        ]
        self.values = [_zeros((self._reserved_rows, heads, capacity, size), shape) for heads, _, size in sizes]

    @property
    def free_rows(self) -> int:
        """Number of free rows."""
        return len(self.slots) - self.used_rows

    def allocate(self) -> Slot:
        """Return a slot in the first free row; the caller has checked `free_rows`."""
        index = self.slots.index(None)
        slot = self.slots[index] = Slot(self, index)
        self.used_rows += 1
        return slot

    def release(self, slot: Slot) -> None:
        """Free the row of a slot."""
        self.slots[slot.index] = None
        self.used_rows -= 1

    def first_keys(self, layer: int, length: int) -> torch.Tensor:
        """Return a view of at least the first `length` keys of all rows: [R, K, blocks, d, positions per block]."""
        blocks = -(-length // self.key_block)
        # Without key blocks, a row is one block, of which the first positions suffice.
        return self.keys[layer][:, :, :blocks, :, : max(length, self.shape.key_block)]

    def write(
        self, layer: int, rows: torch.Tensor, positions: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Write keys and values [N, K, d] to rows [N] at positions [N]."""
        self.keys[layer][rows, :, positions // self.key_block, :, positions % self.key_block] = key
        self.values[layer][rows, :, positions] = value

    def grow(self, expected: int, affordable: int) -> None:
        """Add at least one free row, and at most `affordable` rows; `expected` estimates the number of slots to be needed."""
        rows = len(self.slots)
        if rows < self._reserved_rows:  # this is free, and other pools may need the memory: take one row
            self.resize(rows + 1)
        else:  # this copies the pool: grow by half, so that copies are rare, but leave half of the memory to other pools
            new_rows = max(expected, rows // 2, 1)
            self.resize(rows + min(new_rows, max(affordable // 2, 1)))

    def resize(self, rows: int) -> None:
        """Change the number of rows; used rows move to the front if the tensors are replaced."""
        if len(self.slots) < rows <= len(self.keys[0]):
            self.slots += [None] * (rows - len(self.slots))
            return
        used = [slot for slot in self.slots if slot is not None]
        order = torch.tensor([slot.index for slot in used], dtype=torch.long, device=self.shape.device)
        capacity = max(rows, self._reserved_rows)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):  # layer by layer, so that only one layer is in memory twice
                new = _zeros((capacity, *old.shape[1:]), self.shape)
                if used:
                    torch.index_select(old, 0, order, out=new[: len(used)])
                tensors[layer] = new
        free: list[Slot | None] = [None] * (rows - len(used))
        self.slots = [*used, *free]
        for i, slot in enumerate(used):
            slot.index = i

    def make_contiguous(self, slots: Sequence[Slot]) -> None:
        """Move the rows of these slots next to each other with the fewest moves."""
        indices = sorted(slot.index for slot in slots)
        self.decode_start = _window(indices, len(self.slots))
        self.decode_rows = len(slots)
        window = range(self.decode_start, self.decode_start + self.decode_rows)
        chosen = set(indices)
        outside = [i for i in indices if i not in window]
        holes = [i for i in window if i not in chosen]
        if outside:
            self._swap(holes, outside)

    def _swap(self, holes: Sequence[int], rows: Sequence[int]) -> None:
        # The row of a retired sequence in a hole moves to where the decoded one was: it may still be reused.
        used = [hole for hole in holes if self.slots[hole] is not None]
        back = [row for row, hole in zip(rows, holes, strict=True) if self.slots[hole] is not None]
        filled = max(slot.filled for i in [*rows, *used] if (slot := self.slots[i]) is not None)
        targets = torch.tensor([*holes, *back], device=self.shape.device)
        sources = torch.tensor([*rows, *used], device=self.shape.device)
        for layer, values in enumerate(self.values):
            for part in (self.first_keys(layer, filled), values[:, :, :filled]):
                part[targets] = part[sources]
        for hole, row in zip(holes, rows, strict=True):
            self.slots[hole], self.slots[row] = self.slots[row], self.slots[hole]
            for i in (hole, row):
                moved = self.slots[i]
                if moved is not None:
                    moved.index = i


def _window(indices: Sequence[int], rows: int) -> int:
    """Return the start of the window of len(indices) rows that contains most of the `indices` (ascending)."""
    best, first, end = 0, 0, 0
    for i, index in enumerate(indices):
        while end < len(indices) and indices[end] < index + len(indices):
            end += 1
        if end - i > best:
            best, first = end - i, index
    return max(0, min(first, rows - len(indices)))


def _zeros(shape: tuple[int, ...], cache: CacheShape) -> torch.Tensor:
    """Return zeros (uninitialized memory may hold NaN, which a mask does not hide). On a CPU, pages are allocated on first
    write.
    """
    if cache.device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=cache.dtype, device=cache.device)
    # A separate mapping: `calloc` would reuse freed heap memory and fill all of the reserved memory with zeros.
    size = math.prod(shape) * cache.dtype.itemsize
    if sys.platform == "linux":
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    else:
        memory = mmap.mmap(-1, size, access=mmap.ACCESS_COPY)
    return torch.frombuffer(memory, dtype=cache.dtype).view(shape)


def copy_row(source: Slot, target: Slot, length: int) -> None:
    """Copy the first `length` positions of a sequence into a slot of any pool."""
    row, source_row = target.index, source.index
    for layer in range(source.pool.shape.layers):
        target.pool.first_keys(layer, length)[row] = source.pool.first_keys(layer, length)[source_row]
        target.pool.values[layer][row, :, :length] = source.pool.values[layer][source_row, :, :length]
    target.filled = length


class KVCache:
    """All pools under one memory budget.

    A sequence has a slot from its admission on. When it ends, its slot stays reusable for sequences that start with the same
    tokens, until the memory is needed; the least recently retired slot is evicted first.

    Args:
        budget: Maximum bytes of all pools.
    """

    def __init__(self, shape: CacheShape, budget: int, max_rows: int):
        self.shape, self.budget, self.max_rows = shape, budget, max_rows
        self.max_positions = budget // shape.position_bytes
        """Positions that fit in the budget."""
        self.pools: dict[int, Pool] = {}
        self.reusable: OrderedDict[Slot, None] = OrderedDict()
        self.index: PrefixIndex[Slot] = PrefixIndex()

    @property
    def allocated_bytes(self) -> int:
        """Number of bytes that are allocated now."""
        return sum(len(pool.slots) * pool.row_bytes for pool in self.pools.values())

    @property
    def used_rows(self) -> int:
        """Number of rows of active and retired sequences."""
        return sum(pool.used_rows for pool in self.pools.values())

    def fits(self, length: int) -> bool:
        """Return whether a single sequence of this length fits in the budget."""
        return row_capacity(length) <= self.max_positions

    def allocate(self, length: int, protected: Slot | None = None, expected: int = 1) -> Slot | None:
        """Return a slot for `length` positions; None if active sequences use the memory.

        Args:
            expected: Number of further slots of this length that are likely to be needed. If growing copies the pool,
                it grows by this many rows, up to half of the available memory.
        """
        capacity = row_capacity(length)
        if capacity not in self.pools:
            self.pools[capacity] = Pool(self.shape, capacity, self.budget)
        pool = self.pools[capacity]
        while self.used_rows > self.max_rows and self._evict(pool, protected):
            pass
        gain = max(pool.row_bytes, self._worthwhile_gain(protected))
        while not pool.free_rows:
            affordable = (self.budget - self.allocated_bytes) // pool.row_bytes
            if affordable > 0:
                pool.grow(expected, affordable)
            elif not self._release_free_rows(gain) and not self._evict(pool, protected):
                return None
        return pool.allocate()

    def _worthwhile_gain(self, protected: Slot | None) -> int:
        """Return how many bytes must become available for copying pools to be worthwhile.

        It is half of the bytes that would be available if all retired slots were evicted, at least 1/32 and at most 1/8 of the
        budget. There is no minimum for the last active sequence, which would otherwise wait for memory that nothing frees.
        """
        # Without it, every conversation that outgrew its row had all pools copied for a single row: 300 games of Tic-Tac-Toe
        # with a 135M model had not ended after 10 minutes (benchmarks/LOG.md).
        retired = sum(slot.pool.row_bytes for slot in self.reusable if slot is not protected)
        used = sum(pool.used_rows * pool.row_bytes for pool in self.pools.values())
        available = self.budget - (used - retired)
        is_last = self.used_rows - len(self.reusable) <= 1
        least = 0 if is_last else self.budget // MIN_GAIN_DIVISOR
        return min(max(available // 2, least), self.budget // MAX_GAIN_DIVISOR)

    def _release_free_rows(self, gain: int = 1) -> bool:
        """Free the memory of unused rows if it makes at least `gain` bytes available; return whether it did."""
        pools = [pool for pool in self.pools.values() if pool.free_rows]
        free_bytes = sum(pool.free_rows * pool.row_bytes for pool in pools)
        if not pools or self.budget - self.allocated_bytes + free_bytes < gain:
            return False
        for pool in pools:
            pool.resize(pool.used_rows)
        return True

    def _evict(self, pool: Pool, protected: Slot | None) -> bool:
        """Evict a retired slot of the pool, or an eighth of all retired slots if other pools must shrink (copying pools is
        expensive).
        """
        evictable = [slot for slot in self.reusable if slot is not protected]
        if evictable and evictable[0].pool is pool:
            self.free(evictable[0])
            return True
        for slot in evictable[: max(1, len(evictable) // 8)]:
            self.free(slot)
        return bool(evictable)

    def grow(self, slot: Slot, length: int) -> Slot | None:
        """Return a slot with the same content and room for `length` positions (the given slot if it is large enough); None if
        there is no memory.
        """
        if length <= slot.pool.capacity:
            return slot
        larger = self.allocate(length)
        if larger is not None:
            copy_row(slot, larger, slot.filled)
            larger.target = slot.target
            larger.prefix_group, larger.shared_prefix = slot.prefix_group, slot.shared_prefix
            larger.scope, larger.outdated = slot.scope, slot.outdated
            self.free(slot)
        return larger

    def retire(self, slot: Slot, tokens: Sequence[int]) -> None:
        """Keep the slot of an ended sequence for reuse; `tokens` are the tokens of its filled positions."""
        # Keys of older weights serve their own response only: docs/decisions/async.md.
        if not slot.filled or slot.outdated:
            return self.free(slot)
        slot.target = 0
        self.reusable[slot] = None
        self.index.add(tokens[: slot.filled], slot, slot.scope)

    def mark_outdated(self, slot: Slot) -> None:
        """Exclude a running sequence from reuse after a weight update."""
        self.index.remove(slot)
        slot.outdated = True

    def reuse(self, slot: Slot) -> None:
        """Activate a retired slot."""
        del self.reusable[slot]
        self.index.remove(slot)

    def free(self, slot: Slot) -> None:
        """Free an active or retired slot."""
        self.reusable.pop(slot, None)
        self.index.remove(slot)
        slot.pool.release(slot)

    def clear(self, release_memory: bool = False, scope: int | None = None) -> None:
        """Evict the retired slots of one scope, or of all scopes (None); with `release_memory`, also free their memory."""
        for slot in list(self.reusable):
            if scope is None or slot.scope == scope:
                self.free(slot)
        if release_memory:
            self._release_free_rows()
