"""The compiled kernels do what PyTorch's operators do, and both what the textbook says."""

from __future__ import annotations

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.engine import ops as ops_module
from rove.engine.batch import DecodeBatch, Piece
from rove.engine.kv_cache import CacheShape, Pool, Slot
from rove.engine.ops import AttentionHeads, NativeOps, Ops, TorchOps, rotate_qkv

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def native_ops(heads: AttentionHeads, dtype: torch.dtype, widths: list[int]) -> NativeOps:
    ops = NativeOps.create(heads, 1e-5, "silu", widths, torch.zeros(1, dtype=dtype))
    assert ops is not None
    return ops


def close(ours: torch.Tensor, exact: torch.Tensor) -> None:
    """Within fp32's rounding, or two of bf16."""
    tolerance = 1e-5 if ours.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(ours.double(), exact.double(), rtol=tolerance, atol=tolerance)


def attention_by_the_book(
    qkv: torch.Tensor, heads: AttentionHeads, norm: torch.Tensor | None, angles: torch.Tensor, pasts: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each row [B, H + 2 · K, d] sees of its own past, pairs of keys and values [length, 2, K, d], and of itself [B, H, d];
    and its new keys."""
    query, key, value = rotate_qkv(
        qkv.double(), heads, None if norm is None else norm.double(), angles.to(torch.complex128)
    )
    # turned() computes in fp32; this is close enough for fp32 and far closer than bf16 needs.
    out = []
    for b, past in enumerate(pasts):
        keys = torch.cat([past[:, 0].double(), key[b : b + 1].to(qkv.dtype).double()])
        values = torch.cat([past[:, 1].double(), value[b : b + 1]])
        groups = heads.queries // heads.keys
        keys, values = (x.repeat_interleave(groups, dim=1) for x in (keys, values))
        weights = torch.einsum("hd,thd->ht", query[b], keys).softmax(-1)
        out.append(torch.einsum("ht,thd->hd", weights, values))
    return torch.stack(out), key


@needs_compiler
@TYPES
@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from([(4, 2, 16), (4, 1, 32), (3, 3, 8), (8, 1, 64), (6, 2, 24)]),
    st.lists(st.integers(0, 600), min_size=1, max_size=6),
    st.integers(0, 600),
    st.booleans(),
    st.integers(0, 1000),
)
def test_decode_attention(
    dtype: torch.dtype, shape: tuple[int, int, int], lengths: list[int], common: int, normed: bool, seed: int
):
    heads = AttentionHeads(*shape, 1e-5)
    generator = torch.Generator().manual_seed(seed)

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator)

    angles = torch.polar(torch.ones(700, heads.size // 2), 7 * random(700, heads.size // 2))
    norm = 1 + random(heads.queries + heads.keys, heads.size) if normed else None
    qkv = (2 * random(len(lengths), heads.queries + 2 * heads.keys, heads.size)).to(dtype)
    shared = random(600, 2, heads.keys, heads.size).to(dtype)
    pasts = [random(length, 2, heads.keys, heads.size).to(dtype) for length in lengths]
    for past in pasts:
        past[:common] = shared[: min(common, len(past))]
    wanted, new_keys = attention_by_the_book(qkv, heads, norm, angles[torch.tensor(lengths)], pasts)
    for ops in (native_ops(heads, dtype, []), TorchOps(heads, 1e-5, "silu")):
        pool = Pool(CacheShape(1, heads.keys, heads.size, dtype, CPU, key_block=ops.block), 640, 1 << 26)
        pool.resize(len(lengths) + 2)
        slots = []
        for i, past in enumerate(pasts):
            slot = pool.slots[i + 1] = Slot(pool, i + 1, len(past))
            pool.keys[0][i + 1] = pool.values[0][i + 1] = (
                float("inf") if ops.takes_any_rows else 1e4
            )  # what nobody may see
            rows, places = torch.full((len(past),), i + 1), torch.arange(len(past))
            pool.write(0, rows, places, past[:, 0], past[:, 1])
            slots.append(slot)
        for slot in slots[1:]:
            if len(pasts[0]) >= 1 and (same := min(common, slot.filled, slots[0].filled)):
                slot.share_prefix(slots[0], same)
        pool.make_contiguous(slots)
        seen = torch.empty(len(lengths), heads.queries, heads.size, dtype=dtype)
        ops.attend(
            0,
            qkv,
            _norm_for(ops, norm, dtype),
            angles,
            DecodeBatch.from_pieces([Piece(slot, length, 1) for slot, length in zip(slots, lengths, strict=True)], 0),
            seen,
        )
        tolerance = 2e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(seen.double(), wanted, rtol=tolerance, atol=tolerance)
        for i, length in enumerate(lengths):
            kept = pool.first_keys(0, length + 1)[i + 1].transpose(-1, -2).flatten(1, 2)[:, length]
            torch.testing.assert_close(kept.double(), new_keys[i], rtol=tolerance, atol=tolerance)
            assert torch.equal(pool.values[0][i + 1, :, length], qkv[i, heads.queries + heads.keys :])


def _norm_for(ops: Ops, norm: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return norm if norm is None else norm.to(ops.norm_dtype or dtype)


@needs_compiler
def test_shared_positions_are_read_where_they_are_shared():
    heads = AttentionHeads(2, 1, 16, 1e-5)
    ops = native_ops(heads, torch.float32, [])
    pool = Pool(CacheShape(1, 1, 16, torch.float32, CPU, key_block=ops.block), 64, 1 << 20)
    pool.resize(2)
    pool.values[0][0], pool.values[0][1] = 1.0, 2.0
    slots = [Slot(pool, 0, 40), Slot(pool, 1, 40)]
    slots[1].share_prefix(slots[0], 39)
    qkv = torch.zeros(2, 4, 16)  # all positions weigh the same
    seen = torch.empty(2, 2, 16)
    ops.attend(
        0,
        qkv,
        None,
        torch.ones(64, 8, dtype=torch.complex64),
        DecodeBatch.from_pieces([Piece(slot, 40, 1) for slot in slots], 0),
        seen,
    )
    assert seen[0, 0, 0].item() == pytest.approx(40 / 41)
    assert seen[1, 0, 0].item() == pytest.approx(
        (32 * 1 + 8 * 2) / 41
    )  # whole vectors of 16 are read from the other row


@needs_compiler
@TYPES
def test_gates_and_norms(dtype: torch.dtype):
    torch.manual_seed(0)
    heads = AttentionHeads(2, 1, 16, 1e-5)
    x, more = (torch.randn(5, 48).to(dtype) for _ in range(2))
    both = (torch.randn(5, 64) * 30).to(dtype)
    weight = torch.randn(48)
    added = (x.double() + more.double()).to(dtype)
    for ops in (native_ops(heads, dtype, [48, 32]), TorchOps(heads, 1e-5, "silu")):
        gate, other = both.double().chunk(2, -1)
        close(ops.gate(both), gate * gate.sigmoid() * other)
        stream = x.clone()
        for more_or_none, sums in ((None, x), (more, added)):
            normed = ops.add_norm(stream, more_or_none, weight)
            exact = sums.double()
            close(normed, exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double())
            assert torch.equal(stream, sums)


@needs_compiler
@TYPES
def test_what_is_no_number_stays_none(dtype: torch.dtype):
    heads = AttentionHeads(2, 1, 16, 1e-5)
    ops = native_ops(heads, dtype, [16])
    pool = Pool(CacheShape(1, 1, 16, dtype, CPU, key_block=ops.block), 64, 1 << 20)
    pool.resize(1)
    slot = pool.slots[0] = Slot(pool, 0, 5)
    qkv = torch.zeros(1, 4, 16, dtype=dtype)
    qkv[0, 0, 3] = float("nan")
    seen = torch.empty(1, 2, 16, dtype=dtype)
    ops.attend(
        0, qkv, None, torch.ones(64, 8, dtype=torch.complex64), DecodeBatch.from_pieces([Piece(slot, 5, 1)], 0), seen
    )
    assert seen[0, 0].isnan().all() and not seen[0, 1].isnan().any()
    wrong = torch.full((1, 32), float("nan"), dtype=dtype)
    assert ops.gate(wrong).isnan().all()
    assert ops.add_norm(wrong[:, :16].clone(), None, torch.ones(16)).isnan().all()


@needs_compiler
def test_threads_share_the_rows_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ops_module, "MIN_THREAD_POSITIONS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    ops, done = native_ops(AttentionHeads(2, 1, 16, 1e-5), torch.float32, []), []
    ops._split(lambda first, count: done.append((first, count)), [0, 2, 3, 6, 7, 9], 100)
    assert sorted(done) == [(0, 2), (2, 4), (6, 3)]  # cut where sequences begin


@pytest.mark.parametrize(
    ("heads", "activation", "widths", "weight"),
    [
        (AttentionHeads(2, 1, 12, 1e-5), "silu", [], torch.zeros(1)),
        (AttentionHeads(2, 1, 16, 1e-5), "gelu", [], torch.zeros(1)),
        (AttentionHeads(2, 1, 16, 1e-5), "silu", [36], torch.zeros(1)),
        (AttentionHeads(2, 1, 16, 1e-5), "silu", [], torch.zeros(1, dtype=torch.float16)),
        (AttentionHeads(32, 1, 16, 1e-5), "silu", [], torch.zeros(1)),
    ],
)
def test_models_it_has_no_kernels_for(heads: AttentionHeads, activation: str, widths: list[int], weight: torch.Tensor):
    assert NativeOps.create(heads, 1e-5, activation, widths, weight) is None
