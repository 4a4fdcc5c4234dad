from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.train.batch import Batch, micro_batches, trained_tokens
from rove.train.samples import Sample


@st.composite
def samples(draw: st.DrawFn) -> list[Sample]:
    made = []
    for number in range(draw(st.integers(0, 12))):
        mask = draw(st.lists(st.booleans(), min_size=1, max_size=20))
        made.append(
            Sample(
                ids=[number * 100 + i + 1 for i in range(len(mask))],
                mask=mask,
                logprobs=[-1.0 - i if m else 0.0 for i, m in enumerate(mask)],
                advantages=[0.5 + number if m else 0.0 for m in mask],
                temperature=draw(st.sampled_from([1.0, 1.25])),
            )
        )
    return made


def unpadded(batches: list[Batch]) -> list[Sample]:
    """Back from tensors to samples; padding is whatever follows a row's last id (no real id is 0)."""
    rows: list[Sample] = []
    for batch in batches:
        for b in range(len(batch.ids)):
            length = int((batch.ids[b] != 0).sum())
            assert not batch.ids[b, length:].any() and not batch.mask[b, length:].any()
            assert not batch.logprobs[b, length:].any() and not batch.advantages[b, length:].any()
            columns = [tensor[b, :length].tolist() for tensor in batch[:4]]
            rows.append(Sample(*columns, temperature=batch.temperature[b].item()))
    return rows


@settings(deadline=None, max_examples=200)
@given(samples(), st.integers(1, 120))
def test_every_sample_is_in_exactly_one_batch_and_the_budget_holds(given_samples: list[Sample], budget: int):
    batches = micro_batches(given_samples, budget)
    assert sorted(unpadded(batches), key=lambda s: s.ids[0]) == given_samples
    for batch in batches:
        assert batch.ids.numel() <= budget or len(batch.ids) == 1
    assert trained_tokens(given_samples) == sum(int(batch.mask.sum()) for batch in batches)


@settings(deadline=None)
@given(samples(), st.integers(1, 120))
def test_lengths_fall_so_that_little_is_padded(given_samples: list[Sample], budget: int):
    lengths = [int((row != 0).sum()) for batch in micro_batches(given_samples, budget) for row in batch.ids]
    assert lengths == sorted(lengths, reverse=True)


def test_a_sample_longer_than_the_budget_goes_alone():
    long, short = (Sample([1] * n, [True] * n, [0.0] * n, [1.0] * n) for n in (10, 3))
    assert [tuple(batch.ids.shape) for batch in micro_batches([short, long, short], 6)] == [(1, 10), (2, 3)]


def test_types_and_device():
    [batch] = micro_batches([Sample([1], [True], [0.0], [1.0])], 8, torch.device("cpu"))
    assert [x.dtype for x in batch] == [torch.long, torch.bool, torch.float32, torch.float32, torch.float32]


@pytest.mark.parametrize("nothing", [[], [Sample([1, 2], [False, False], [0.0] * 2, [0.0] * 2)]])
def test_nothing_trained_counts_as_nothing(nothing: list[Sample]):
    assert trained_tokens(nothing) == 0
