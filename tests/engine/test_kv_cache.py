from __future__ import annotations

import mmap
import os
import resource
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.engine.kv_cache import CacheShape, KVCache, Pool, PrefixIndex, Slot, common_prefix, copy_row, row_capacity
from rove.utils.processes import trim_heap

CPU = torch.device("cpu")
SHAPE = CacheShape(
    layers=3, kv_heads=2, head_size=4, dtype=torch.float32, device=CPU, conv_layers=frozenset({1}), conv_width=6
)
BLOCK_SHAPES = pytest.mark.parametrize(
    "shape", [SHAPE, SHAPE._replace(key_block=16)], ids=["whole rows", "blocks of 16"]
)


def cache_bytes(count: int, length: int = 64) -> int:
    """Return the size in bytes of `count` rows."""
    return count * row_capacity(length) * SHAPE.position_bytes


def write(slot: Slot, tokens: list[int]) -> None:
    """Write keys and values that encode their token, layer and head; the second layer is a convolution."""
    slot.filled = len(tokens)
    for layer in range(SHAPE.layers):
        for head in range(SHAPE.layer_shape(layer)[0]):
            stamp = torch.tensor(tokens) * 100.0 + layer * 10 + head
            block = slot.pool.first_keys(layer, slot.filled)[slot.index, head].transpose(-1, -2)
            positions = torch.arange(slot.filled)
            block[positions // block.shape[1], positions % block.shape[1]] = stamp[:, None]
            slot.pool.values[layer][slot.index, head, : slot.filled] = -stamp[:, None]


def stored_tokens(slot: Slot) -> list[int]:
    """Return the tokens stored in a slot, decoded from its keys and values."""
    contents = set()
    for layer in range(SHAPE.layers):
        for head in range(SHAPE.layer_shape(layer)[0]):
            keys = slot.pool.first_keys(layer, slot.filled)[slot.index, head].transpose(-1, -2).flatten(0, 1)
            keys = keys[: slot.filled].T
            values = slot.pool.values[layer][slot.index, head, : slot.filled]
            assert all(torch.equal(key, -values[:, 0]) for key in keys)
            assert all(torch.equal(value, values[:, 0]) for value in values.T)
            contents.add(tuple(((-values[:, 0] - layer * 10 - head) / 100).int().tolist()))
    assert len(contents) == 1
    return list(contents.pop())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_position_bytes_equal_the_size_of_the_tensors(dtype: torch.dtype):
    shape = SHAPE._replace(dtype=dtype)
    # Keys and values of two layers, one vector of the third.
    assert shape.position_bytes == (2 * 2 * 2 * 4 + 6) * dtype.itemsize
    pool = Pool(shape, 64, 5 * 64 * shape.position_bytes)
    assert (
        sum(part.nbytes for part in [*pool.keys, *pool.values]) == 5 * pool.row_bytes == 5 * 64 * shape.position_bytes
    )


@given(st.integers(1, 100_000))
def test_row_capacity_exceeds_the_requested_length_by_at_most_a_quarter(length: int):
    capacity = row_capacity(length)
    assert capacity >= length
    assert capacity == 64 or capacity <= 1.25 * length + 1
    assert row_capacity(capacity) == capacity


@BLOCK_SHAPES
def test_make_contiguous_keeps_the_content_of_rows(shape: CacheShape):
    cache = KVCache(shape, cache_bytes(8), 99)
    slots = [cache.allocate(10, expected=8) for _ in range(7)]
    for i, slot in enumerate(slots):
        assert slot is not None
        write(slot, [i, i + 1])
    used = [slot for slot in slots if slot is not None]
    pool = used[0].pool
    for chosen in ([0, 1, 2], [6, 4, 2], [1, 5], [0, 2, 4, 6], [3], []):
        pool.make_contiguous([used[i] for i in chosen])
        assert sorted(used[i].index for i in chosen) == list(range(pool.decode_start, pool.decode_start + len(chosen)))
        assert [stored_tokens(slot) for slot in used] == [[i, i + 1] for i in range(7)]
        assert all(pool.slots[slot.index] is slot for slot in used)


@BLOCK_SHAPES
def test_a_sequence_that_outgrows_its_row_moves_to_a_larger_row(shape: CacheShape):
    cache = KVCache(shape, cache_bytes(8), 99)
    slot = cache.allocate(60)
    assert slot is not None
    write(slot, list(range(60)))
    assert cache.grow(slot, 64) is slot
    larger = cache.grow(slot, 65)
    assert larger is not None and larger.pool.capacity == 80
    assert stored_tokens(larger) == list(range(60))
    assert slot.pool.free_rows == len(slot.pool.slots)


def test_reusable_rows_are_evicted_oldest_first_except_the_protected_row():
    cache = KVCache(SHAPE, cache_bytes(3), 99)
    for i in range(3):
        slot = cache.allocate(10)
        assert slot is not None
        write(slot, [i, i])
        cache.retire(slot, [i, i])
    first, second, _ = cache.reusable
    assert cache.allocate(10, protected=first) is not None
    assert first in cache.reusable and second not in cache.reusable
    assert cache.allocate(10) is not None and cache.allocate(10) is not None
    assert cache.allocate(10) is None
    assert cache.allocated_bytes <= cache.budget


def test_reusable_rows_are_limited_by_the_batch_size():
    cache = KVCache(SHAPE, cache_bytes(99), 4)
    for i in range(6):
        slot = cache.allocate(10)
        assert slot is not None
        write(slot, [i])
        cache.retire(slot, [i])
    # One more than the batch size, needed when a sequence moves.
    assert [stored_tokens(slot) for slot in cache.reusable] == [
        [1],
        [2],
        [3],
        [4],
        [5],
    ]
    used = [cache.allocate(10) for _ in range(6)]
    assert None not in used and not cache.reusable
    assert len(cache.pools[64].slots) <= 8


def test_rows_with_a_common_prefix_form_a_prefix_group():
    cache = KVCache(SHAPE, cache_bytes(20), 99)
    system, first, second, third = (cache.allocate(60) for _ in range(4))
    assert system and first and second and third
    first.share_prefix(system, 10)
    second.share_prefix(first, 30)  # a group's prompt is longer than the prefix it shares with other groups
    assert (system.prefix_group, system.shared_prefix) == (1, 10) or system.prefix_group != second.prefix_group
    assert first.prefix_group == second.prefix_group and first.shared_prefix == second.shared_prefix == 30
    third.share_prefix(second, 20)
    assert third.prefix_group == second.prefix_group and third.shared_prefix == 20
    write(first, list(range(60)))
    larger = cache.grow(first, 100)
    assert larger and (larger.prefix_group, larger.shared_prefix) == (second.prefix_group, 30)
    assert cache.allocate(60).prefix_group == 0  # pyright: ignore[reportOptionalMemberAccess]


def test_memory_moves_between_pools_of_different_row_sizes():
    cache = KVCache(SHAPE, cache_bytes(4), 99)
    for i in range(4):
        slot = cache.allocate(10)
        assert slot is not None
        write(slot, [i])
        cache.retire(slot, [i])
    long = cache.allocate(128)
    assert long is not None
    assert cache.allocated_bytes <= cache.budget
    assert [stored_tokens(slot) for slot in cache.reusable] == [[2], [3]]
    assert cache.allocate(256) is None
    assert cache.fits(256) and not cache.fits(257)


def test_growing_sequences_in_a_full_cache_rarely_copy_pools(monkeypatch: pytest.MonkeyPatch):
    shrunk_pools = []
    resize = Pool.resize

    def counting_resize(pool: Pool, rows: int) -> None:
        shrunk_pools.extend([pool] if rows < len(pool.slots) else [])
        resize(pool, rows)

    monkeypatch.setattr(Pool, "resize", counting_resize)
    cache = KVCache(SHAPE, cache_bytes(64), 99)
    slots = [cache.allocate(60) for _ in range(64)]
    for token, slot in enumerate(slots):
        assert slot is not None
        write(slot, [token] * 60)
        cache.retire(slot, [token] * 60)
    grown = 0
    for token, slot in enumerate(slots):
        assert slot is not None
        if slot not in cache.reusable:  # evicted
            continue
        cache.reuse(slot)
        larger = cache.grow(slot, 80)
        if larger is None:
            cache.retire(slot, [token] * 60)
            break
        assert stored_tokens(larger) == [token] * 60
        cache.retire(larger, [token] * 60)
        grown += 1
    assert grown >= 32
    assert len(shrunk_pools) <= 16


def test_empty_rows_are_not_kept_and_clear_removes_all_rows():
    cache = KVCache(SHAPE, cache_bytes(4), 99)
    for tokens in ([], [1, 2]):
        slot = cache.allocate(10)
        assert slot is not None
        write(slot, tokens)
        cache.retire(slot, tokens)
    assert len(cache.reusable) == len(cache.index) == 1
    cache.clear(scope=3)
    assert len(cache.reusable) == 1
    cache.clear()
    assert len(cache.reusable) == len(cache.index) == 0 < cache.allocated_bytes
    cache.clear(release_memory=True)
    assert cache.allocated_bytes == 0


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "keep", "free", "grow", "copy", "arrange"]), st.integers(1, 200)),
        max_size=40,
    ),
    st.integers(2, 6),
    st.sampled_from([0, 8, 16]),
)
def test_contents_and_the_memory_limit_hold_for_any_sequence_of_actions(
    actions: list[tuple[str, int]], size: int, block: int
):
    cache = KVCache(SHAPE._replace(key_block=block), cache_bytes(size), 99)
    used: dict[Slot, list[int]] = {}
    retired: dict[Slot, list[int]] = {}
    for action, number in actions:
        slot = list(used)[number % len(used)] if used else None
        if action == "take" and (new := cache.allocate(number)) is not None:
            used[new] = list(range(number, 2 * number))
            write(new, used[new])
        elif action == "copy" and slot is not None and (new := cache.allocate(len(used[slot]))) is not None:
            copy_row(slot, new, len(used[slot]))
            used[new] = used[slot]
        elif slot is None:
            continue
        elif action == "keep":
            retired[slot] = used.pop(slot)
            cache.retire(slot, retired[slot])
        elif action == "free":
            del used[slot]
            cache.free(slot)
        elif action == "grow" and (new := cache.grow(slot, number)) is not None:
            used[new] = used.pop(slot)
        elif action == "arrange":
            slot.pool.make_contiguous([used_slot for used_slot in used if used_slot.pool is slot.pool][: number % 4])
        assert cache.allocated_bytes <= cache.budget
        assert all(stored_tokens(slot) == tokens for slot, tokens in used.items())
        assert all(stored_tokens(slot) == retired[slot] for slot in cache.reusable)
        assert len(cache.reusable) == len(cache.index)


tokens = st.lists(st.integers(0, 2), max_size=6)


@given(tokens, tokens)
def test_common_prefixes(a: list[int], b: list[int]):
    expected = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    assert common_prefix(a, b) == expected


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), tokens, st.integers(0, 2)), max_size=30), tokens)
def test_nearest_returns_the_longest_shared_prefix_within_a_scope(
    actions: list[tuple[bool, int, list[int], int]], prompt: list[int]
):
    index: PrefixIndex[int] = PrefixIndex()
    model: dict[int, tuple[int, list[int]]] = {}
    for adds, value, at, scope in actions:
        if adds:
            index.add(at, value, scope)
            model[value] = scope, at
        else:
            index.remove(value)
            model.pop(value, None)
    assert len(index) == len(model)
    for scope in range(3):
        in_scope = {value: at for value, (owner, at) in model.items() if owner == scope}
        nearest = index.nearest(prompt, scope)
        assert all(shared == common_prefix(prompt, in_scope[value]) for shared, value in nearest)
        assert max((shared for shared, _ in nearest), default=0) == max(
            (common_prefix(prompt, at) for at in in_scope.values()), default=0
        )


def test_reserved_rows_use_no_memory_even_if_the_heap_has_free_memory():
    """`calloc` fills freed heap memory with zeros, which would make all reserved rows resident."""
    length = 36 << 20  # larger than any threshold above which malloc maps memory
    torch.ones(7 << 20)  # after freeing 28 MiB once, malloc takes such sizes from the heap
    heap = [torch.ones(1 << 20) for _ in range(40)]
    del heap[:-1]
    trim_heap()
    resident_bytes_before = resident_bytes()
    shape = CacheShape(layers=2, kv_heads=1, head_size=64, dtype=torch.float32, device=CPU)
    pool = Pool(shape, 64, budget=4 * length)
    assert sum(x.nbytes for x in [*pool.keys, *pool.values]) > 3 * length
    assert resident_bytes() - resident_bytes_before < length / 2


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTFORK"), reason="this system copies every mapping at a fork")
def test_a_process_with_a_large_reservation_can_fork():
    total_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    pools = [Pool(SHAPE, 64, total_memory // 2) for _ in range(3)]
    completed = subprocess.run(["true"], preexec_fn=lambda: None)  # with preexec_fn, Python forks
    assert completed.returncode == 0 and len(pools) == 3
