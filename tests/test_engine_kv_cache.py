from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.engine.kv_cache import GROWTH, BatchCache, KVStore, key_of

LAYERS, HEADS, SIZE = 2, 3, 4


def new_cache(rows: int, capacity: int) -> BatchCache:
    return BatchCache(LAYERS, rows, HEADS, SIZE, capacity, torch.float32, torch.device("cpu"))


def stamp(ids: torch.Tensor) -> torch.Tensor:
    """Keys [B, K, n, d] that say which token and head they belong to."""
    return ids[:, None, :, None] * 10.0 + torch.arange(HEADS)[None, :, None, None] + torch.zeros(SIZE)


def write(cache: BatchCache, positions: list[list[int]], ids: list[list[int]]) -> torch.Tensor:
    mask = cache.place(torch.tensor(positions))
    new = stamp(torch.tensor(ids))
    for layer in range(LAYERS):
        key, value = cache.update(new + layer * 1000, -new - layer * 1000, layer)
        assert key.shape == value.shape == (len(ids), HEADS, cache.used, SIZE)
        assert torch.equal(key, -value)
    return mask


def held(cache: BatchCache, row: int, length: int, layer: int = 0) -> list[int]:
    """The tokens a row holds, read off its keys."""
    tokens = (cache.kv[layer, 0, row, :, :length] - layer * 1000 - torch.arange(HEADS)[:, None, None]) / 10
    assert bool((tokens == tokens[:1, :, :1]).all())
    return [int(t) for t in tokens[0, :, 0]]


def test_aligned_rows_then_ragged_rows():
    cache = new_cache(2, 8)
    write(
        cache, [[0, 1, 2], [0, 1, 2]], [[1, 2, 3], [4, 5, 0]]
    )  # the second row is one shorter: its last token is padding
    write(cache, [[3], [2]], [[6], [7]])
    for layer in range(LAYERS):
        assert held(cache, 0, 4, layer) == [1, 2, 3, 6]
        assert held(cache, 1, 3, layer) == [4, 5, 7]
    assert cache.get_seq_length() == 4


def test_the_mask_shows_each_token_its_own_past():
    cache = new_cache(2, 8)
    mask = write(cache, [[0, 1], [3, 4]], [[1, 2], [3, 4]])
    assert mask.shape == (2, 1, 2, 5)
    assert mask[:, 0].sum(-1).tolist() == [[1, 2], [4, 5]]
    assert mask[0, 0, 1].tolist() == [True, True, False, False, False]


def test_a_cache_that_is_outgrown_keeps_what_it_holds():
    cache = new_cache(1, 2)
    write(cache, [[0, 1]], [[1, 2]])
    write(cache, [[2]], [[3]])
    assert cache.kv.shape[4] == 2 + GROWTH
    long = list(range(3, 3 + 2 * GROWTH))
    write(cache, [long], [long])
    assert held(cache, 0, 3 + len(long)) == [1, 2, 3, *long]


def test_a_view_writes_through_and_knows_how_far_the_cache_is_used():
    cache = new_cache(3, 8)
    write(cache, [[0, 1]] * 3, [[1, 2], [3, 4], [5, 6]])
    view = cache.rows(1, 3)
    mask = write(view, [[1], [2]], [[7], [8]])
    assert mask.shape == (2, 1, 1, 3)
    assert held(cache, 0, 2) == [1, 2]
    assert held(cache, 1, 2) == [3, 7]
    assert held(cache, 2, 3) == [5, 6, 8]


def test_dropping_rows_keeps_the_others_in_order():
    cache = new_cache(4, 4)
    write(cache, [[0, 1]] * 4, [[1, 2], [3, 4], [5, 6], [7, 8]])
    cache.keep(torch.tensor([1, 3]))
    write(cache, [[2], [2]], [[9], [10]])
    assert [held(cache, row, 3) for row in range(2)] == [[3, 4, 9], [7, 8, 10]]


def kv_of(ids: list[int]) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.float32).view(1, 1, 1, -1, 1).expand(LAYERS, 2, HEADS, -1, SIZE)


def test_a_kept_turn_is_found_by_its_exact_tokens_and_only_once():
    store = KVStore(100)
    store.put([1, 2, 3], kv_of([1, 2, 3]))
    assert store.take([1, 2]) is None
    assert store.take([1, 2, 4]) is None
    found = store.take([1, 2, 3])
    assert found is not None and found[0, 0, 0, :, 0].tolist() == [1, 2, 3]
    assert store.take([1, 2, 3]) is None
    assert store.tokens == 0


def test_the_least_recently_kept_goes_first():
    store = KVStore(5)
    store.put([1, 1], kv_of([1, 1]))
    store.put([2, 2], kv_of([2, 2]))
    store.put([1, 1], kv_of([1, 1]))  # kept again: now the newest
    store.put([3, 3], kv_of([3, 3]))
    assert store.take([2, 2]) is None
    assert store.take([1, 1]) is not None
    assert store.take([3, 3]) is not None


def test_what_is_larger_than_the_store_is_not_kept():
    store = KVStore(2)
    store.put([1, 2, 3], kv_of([1, 2, 3]))
    assert (store.tokens, store.take([1, 2, 3])) == (0, None)


turns = st.lists(st.integers(0, 2), min_size=1, max_size=4)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["put", "take", "clear"]), turns), max_size=40), st.integers(0, 8))
def test_memory_stays_bounded_whatever_is_put_and_taken(actions: list[tuple[str, list[int]]], bound: int):
    store = KVStore(bound)
    kept: dict[tuple[int, ...], None] = {}  # a model of the store: oldest first
    for action, ids in actions:
        if action == "clear":
            store.clear()
            kept.clear()
        elif action == "take":
            assert (store.take(ids) is not None) == (tuple(ids) in kept)
            kept.pop(tuple(ids), None)
        else:
            store.put(ids, kv_of(ids))
            kept.pop(tuple(ids), None)
            kept[tuple(ids)] = None
            while sum(map(len, kept)) > bound:
                kept.pop(next(iter(kept)))
        assert store.tokens == sum(map(len, kept)) <= bound


@settings(deadline=None)
@given(turns, turns)
def test_keys_tell_sequences_apart(a: list[int], b: list[int]):
    assert (key_of(a) == key_of(b)) == (a == b)
