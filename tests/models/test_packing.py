"""Attention over packed batches, compiled and in PyTorch, against attention of each sequence by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rove import kernels
from rove.models.packing import Packing, packed_attention

SHAPES = st.sampled_from([(4, 2, 16), (2, 2, 8), (8, 1, 32), (3, 1, 24)])


@st.composite
def packings(draw: st.DrawFn) -> tuple[Packing, int]:
    """Sequences that begin with another's first tokens or with nothing, and the tokens of all."""
    paths: list[np.ndarray] = []
    shared, count = [], 0
    for _ in range(draw(st.integers(1, 6))):
        source = paths[draw(st.integers(0, len(paths) - 1))] if paths and draw(st.booleans()) else np.empty(0, np.int64)
        common = draw(st.integers(0, len(source)))
        new = draw(st.integers(0 if common else 1, 40))
        paths.append(np.concatenate([source[:common], np.arange(count, count + new)]))
        shared.append(common)
        count += new
    return Packing(paths, np.array(shared), torch.device("cpu")), count


def one_by_one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, scale: float
) -> torch.Tensor:
    out: dict[int, torch.Tensor] = {}
    groups = query.shape[1] // key.shape[1]
    for path, shared in zip(packing.paths, packing.shared, strict=True):
        for i in range(shared, len(path)):
            keys, values = (x[0][:, path[: i + 1]].repeat_interleave(groups, 0) for x in (key, value))
            weights = (torch.einsum("hd,htd->ht", query[0, :, path[i]], keys) * scale).softmax(-1)
            out[int(path[i])] = torch.einsum("ht,htd->hd", weights, values)
    return torch.stack([out[i] for i in range(len(out))])[None]


@pytest.mark.broad
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("native", [True, False])
@settings(deadline=None, max_examples=40)
@given(packings(), SHAPES, st.integers(0, 1000))
def test_it_is_attention_of_every_sequence_by_itself(
    native: bool, threads: int, packed: tuple[Packing, int], shape: tuple[int, int, int], seed: int
):
    packing, count = packed
    queries, keys, size = shape
    generator = torch.Generator().manual_seed(seed)
    given_tensors = [
        torch.randn(1, heads, count, size, generator=generator, dtype=torch.float64) for heads in (queries, keys, keys)
    ]
    weights = torch.randn(1, count, queries, size, generator=generator)
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: threads)
        if not native:
            patch.setattr(kernels, "compiled", lambda *args: None)
        elif kernels.compiled("attention", queries // keys, size) is None:
            pytest.skip("there is no C compiler")
        for attend, dtype in ((packed_attention, torch.float32), (one_by_one, torch.float64)):
            inputs = [x.to(dtype).requires_grad_() for x in given_tensors]
            out = attend(*inputs, packing, 0.3)
            (out * weights).sum().backward()
            results.append([out.detach(), *(x.grad for x in inputs)])
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-5)


def test_what_is_no_number_stays_none():
    packing = Packing([np.arange(3)], np.array([0]), torch.device("cpu"))
    query, key, value = (torch.zeros(1, 2, 3, 16) for _ in range(3))
    key[0, 0, 1, 0] = float("nan")
    out = packed_attention(query + 1, key, value, packing, 1.0)
    assert not out[0, 0].isnan().any() and out[0, 1:, 0].isnan().all() and not out[0, :, 1].isnan().any()
