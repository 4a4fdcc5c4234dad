"""The compiled kernels and PyTorch's operators both agree with a reference implementation."""

from __future__ import annotations

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import each_row

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


def assert_close(ours: torch.Tensor, exact: torch.Tensor) -> None:
    """Assert equality within the rounding of fp32, or twice the rounding of bf16."""
    tolerance = 1e-5 if ours.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(ours.double(), exact.double(), rtol=tolerance, atol=tolerance)


def reference_attention(
    qkv: torch.Tensor, heads: AttentionHeads, norm: torch.Tensor | None, angles: torch.Tensor, pasts: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's attention output [B, H, d] and its new keys.

    Args:
        qkv: Queries, keys and values [B, H + 2 · K, d].
        pasts: Earlier keys and values of each row [length, 2, K, d].
    """
    query, key, value = rotate_qkv(
        qkv.double(), heads, None if norm is None else norm.double(), angles.to(torch.complex128)
    )
    # rotate_qkv() computes in fp32, which is exact enough for both dtypes.
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
def test_decode_attention_equals_the_reference(
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
    expected, new_keys = reference_attention(qkv, heads, norm, angles[torch.tensor(lengths)], pasts)
    for ops in (native_ops(heads, dtype, []), TorchOps(heads, 1e-5, "silu")):
        pool = Pool(CacheShape(1, heads.keys, heads.size, dtype, CPU, key_block=ops.block), 640, 1 << 26)
        pool.resize(len(lengths) + 2)
        slots = []
        for i, past in enumerate(pasts):
            slot = pool.slots[i + 1] = Slot(pool, i + 1, len(past))
            # Garbage that must not be read.
            pool.keys[0][i + 1] = pool.values[0][i + 1] = float("inf") if ops.takes_any_rows else 1e4
            rows, positions = torch.full((len(past),), i + 1), torch.arange(len(past))
            pool.write(0, rows, positions, past[:, 0], past[:, 1])
            slots.append(slot)
        for slot in slots[1:]:
            if len(pasts[0]) >= 1 and (shared_length := min(common, slot.filled, slots[0].filled)):
                slot.share_prefix(slots[0], shared_length)
        pool.make_contiguous(slots)
        attended = torch.empty(len(lengths), heads.queries, heads.size, dtype=dtype)
        ops.attend(
            0,
            qkv,
            _norm_for(ops, norm, dtype),
            angles,
            DecodeBatch.from_pieces([Piece(slot, length, 1) for slot, length in zip(slots, lengths, strict=True)], 0),
            attended,
        )
        tolerance = 2e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(attended.double(), expected, rtol=tolerance, atol=tolerance)
        for i, length in enumerate(lengths):
            stored = pool.first_keys(0, length + 1)[i + 1].transpose(-1, -2).flatten(1, 2)[:, length]
            torch.testing.assert_close(stored.double(), new_keys[i], rtol=tolerance, atol=tolerance)
            assert torch.equal(pool.values[0][i + 1, :, length], qkv[i, heads.queries + heads.keys :])


def _norm_for(ops: Ops, norm: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return norm if norm is None else norm.to(ops.norm_dtype or dtype)


@needs_compiler
def test_shared_positions_are_read_from_the_row_that_stores_them():
    heads = AttentionHeads(2, 1, 16, 1e-5)
    ops = native_ops(heads, torch.float32, [])
    pool = Pool(CacheShape(1, 1, 16, torch.float32, CPU, key_block=ops.block), 64, 1 << 20)
    pool.resize(2)
    pool.values[0][0], pool.values[0][1] = 1.0, 2.0
    slots = [Slot(pool, 0, 40), Slot(pool, 1, 40)]
    slots[1].share_prefix(slots[0], 39)
    qkv = torch.zeros(2, 4, 16)  # all positions have equal weight
    attended = torch.empty(2, 2, 16)
    ops.attend(
        0,
        qkv,
        None,
        torch.ones(64, 8, dtype=torch.complex64),
        DecodeBatch.from_pieces([Piece(slot, 40, 1) for slot in slots], 0),
        attended,
    )
    assert attended[0, 0, 0].item() == pytest.approx(40 / 41)
    # Only whole blocks of 16 positions are read from the other row.
    assert attended[1, 0, 0].item() == pytest.approx((32 * 1 + 8 * 2) / 41)


@needs_compiler
@TYPES
def test_gate_and_add_norm_equal_the_reference(dtype: torch.dtype):
    torch.manual_seed(0)
    heads = AttentionHeads(2, 1, 16, 1e-5)
    x, residual = (torch.randn(5, 48).to(dtype) for _ in range(2))
    gate_and_value = (torch.randn(5, 64) * 30).to(dtype)
    weight = torch.randn(48)
    residual_sum = (x.double() + residual.double()).to(dtype)
    for ops in (native_ops(heads, dtype, [48, 32]), TorchOps(heads, 1e-5, "silu")):
        gate, value = gate_and_value.double().chunk(2, -1)
        assert_close(ops.gate(gate_and_value), gate * gate.sigmoid() * value)
        stream = x.clone()
        for update, expected_stream in ((None, x), (residual, residual_sum)):
            normed = ops.add_norm(stream, update, weight)
            exact = expected_stream.double()
            assert_close(normed, exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double())
            assert torch.equal(stream, expected_stream)


@needs_compiler
@TYPES
def test_nan_inputs_stay_nan(dtype: torch.dtype):
    heads = AttentionHeads(2, 1, 16, 1e-5)
    ops = native_ops(heads, dtype, [16])
    pool = Pool(CacheShape(1, 1, 16, dtype, CPU, key_block=ops.block), 64, 1 << 20)
    pool.resize(1)
    slot = pool.slots[0] = Slot(pool, 0, 5)
    qkv = torch.zeros(1, 4, 16, dtype=dtype)
    qkv[0, 0, 3] = float("nan")
    attended = torch.empty(1, 2, 16, dtype=dtype)
    ops.attend(
        0,
        qkv,
        None,
        torch.ones(64, 8, dtype=torch.complex64),
        DecodeBatch.from_pieces([Piece(slot, 5, 1)], 0),
        attended,
    )
    assert attended[0, 0].isnan().all() and not attended[0, 1].isnan().any()
    nan_input = torch.full((1, 32), float("nan"), dtype=dtype)
    assert ops.gate(nan_input).isnan().all()
    assert ops.add_norm(nan_input[:, :16].clone(), None, torch.ones(16)).isnan().all()


def test_work_is_split_between_threads_at_sequence_boundaries(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ops_module, "MIN_THREAD_POSITIONS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    calls: list[tuple[int, int]] = []
    ops_module._run_parallel(lambda first, count: calls.append((first, count)), [0, 2, 3, 6, 7, 9], 100)
    assert sorted(calls) == [(0, 2), (2, 4), (6, 3)]  # split where sequences begin


@each_row(
    ("heads", "activation", "widths", "weight"),
    [
        (AttentionHeads(2, 1, 12, 1e-5), "silu", [], torch.zeros(1)),
        (AttentionHeads(2, 1, 16, 1e-5), "gelu", [], torch.zeros(1)),
        (AttentionHeads(2, 1, 16, 1e-5), "silu", [36], torch.zeros(1)),
        (AttentionHeads(2, 1, 16, 1e-5), "silu", [], torch.zeros(1, dtype=torch.float16)),
        (AttentionHeads(32, 1, 16, 1e-5), "silu", [], torch.zeros(1)),
    ],
)
def test_unsupported_models_get_no_native_ops(
    heads: AttentionHeads, activation: str, widths: list[int], weight: torch.Tensor
):
    assert NativeOps.create(heads, 1e-5, activation, widths, weight) is None
