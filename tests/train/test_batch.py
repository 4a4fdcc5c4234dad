from __future__ import annotations

import pytest
import torch
from fakes import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.train.batch import Batch, can_pack, count_trained_tokens, micro_batches
from rove.train.sequences import TrainingSequence

Term = tuple[tuple[int, ...], int, float, float, float]
"""What comes before a trained token, the token, the sampler's log-probability, advantage and temperature."""


@st.composite
def samples(draw: st.DrawFn) -> list[TrainingSequence]:
    """Few different tokens, so that many begin alike."""
    made = []
    for number in range(draw(st.integers(0, 12))):
        mask = draw(st.lists(st.booleans(), min_size=1, max_size=20))
        made.append(
            TrainingSequence(
                ids=[*draw(st.sampled_from([[], [7] * 5, [7] * 9, [8, 9]])), *draw(_ids(len(mask)))][-len(mask) :],
                mask=mask,
                logprobs=[-1.0 - i if m else 0.0 for i, m in enumerate(mask)],
                advantages=[0.5 + number if m else 0.0 for m in mask],
                temperature=draw(st.sampled_from([1.0, 1.25])),
            )
        )
    return made


def _ids(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, 3), min_size=count, max_size=count)


def wanted(sample: TrainingSequence) -> list[Term]:
    return [
        (tuple(sample.ids[:t]), sample.ids[t], sample.logprobs[t], sample.advantages[t], sample.temperature)
        for t in range(1, len(sample.ids))
        if sample.mask[t]
    ]


def seen_by(batch: Batch) -> dict[int, tuple[int, ...]]:
    """Place of each computed token → what it sees, itself last, as attention and positions have it."""
    ids = batch.ids.flatten().tolist()
    if batch.packing is None:
        width = batch.ids.shape[1]
        return {i: tuple(ids[i // width * width : i + 1]) for i in range(len(ids))}
    seen, asked = {}, []
    for rows in batch.packing.padded_rows:
        for place in rows.real_indices.tolist():
            b, j = divmod(place, rows.queries.shape[1])
            token = int(rows.queries[b, j])
            asked.append(token)
            keys = rows.keys[b] if rows.bias is None else rows.keys[b][rows.bias[b, 0, j] == 0]
            keys = keys[: j + 1] if rows.bias is None else keys
            assert int(keys[-1]) == token
            assert batch.positions is not None and batch.positions[0, token] == len(keys) - 1
            seen[token] = tuple(ids[int(key)] for key in keys)
    assert sorted(asked) == list(range(len(ids)))
    assert [asked[i] for i in batch.packing.token_order.tolist()] == list(range(len(ids)))
    places, offsets, shared = batch.packing.flat_paths
    for b, first in enumerate(shared.tolist()):
        path = places[offsets[b] : offsets[b + 1]].tolist()
        assert all(seen[path[i]] == tuple(ids[place] for place in path[: i + 1]) for i in range(first, len(path)))
    return seen


def terms(batch: Batch) -> dict[int, list[Term]]:
    """Sample of the batch → its trained tokens."""
    assert batch.ids.dtype == torch.long
    seen, found = seen_by(batch), {}
    rows = batch.rows.tolist()
    assert rows == sorted(rows)
    for m, row in enumerate(rows):
        term = (
            seen[int(batch.predicting[row])],
            int(batch.targets[m]),
            batch.logprobs[m].item(),
            batch.advantages[m].item(),
            batch.temperature[row].item(),
        )
        found.setdefault(int(batch.sequence_index[m]), []).append(term)
    return found


@pytest.mark.broad
@settings(deadline=None, max_examples=300)
@given(samples(), st.integers(1, 120), st.booleans())
def test_every_trained_token_is_predicted_once_from_what_its_sample_had_before(
    given_samples: list[TrainingSequence], budget: int, pack: bool
):
    batches = micro_batches(given_samples, budget, pack=pack)
    found = [sorted(some) for batch in batches for some in terms(batch).values()]
    assert sorted(found) == sorted(sorted(wanted(sample)) for sample in given_samples if any(sample.mask[1:]))
    for batch in batches:
        assert batch.ids.numel() <= budget or len(batch.sequence_index.unique()) <= 1
        places = torch.stack([batch.predicting.double(), batch.temperature.double()])
        assert places.unique(dim=1).shape == places.shape  # no place is computed twice


@settings(deadline=None)
@given(samples())
def test_what_samples_have_in_common_is_computed_once(given_samples: list[TrainingSequence]):
    [*batches] = micro_batches(given_samples, 10_000, pack=True)
    beginnings = {tuple(sample.ids[: i + 1]) for sample in given_samples for i in range(len(sample.ids))}
    assert sum(batch.ids.numel() for batch in batches) == len(beginnings)


@settings(deadline=None)
@given(samples(), st.integers(1, 120))
def test_lengths_fall_so_that_little_is_padded(given_samples: list[TrainingSequence], budget: int):
    shapes = [tuple(batch.ids.shape) for batch in micro_batches(given_samples, budget)]
    assert [longest for _, longest in shapes] == sorted((longest for _, longest in shapes), reverse=True)
    assert sum(rows for rows, _ in shapes) == len(given_samples)


def test_a_sample_longer_than_the_budget_goes_alone():
    long, short = (TrainingSequence([n] * n, [True] * n, [0.0] * n, [1.0] * n) for n in (10, 3))
    assert [tuple(batch.ids.shape) for batch in micro_batches([short, long, short], 6)] == [(1, 10), (2, 3)]
    packed = micro_batches([short, long, short], 6, pack=True)
    assert [batch.ids.numel() for batch in packed] == [3, 10]
    assert len(packed[0].sequence_index.unique()) == 2


def test_advantages_of_tokens_that_are_not_trained_do_not_count():
    nothing = [TrainingSequence([1, 2, 3], [True, False, False], [0.0] * 3, [1.0] * 3)]
    assert (
        count_trained_tokens(nothing) == 1
    )  # the first token has nothing before it; it is counted and has no gradient
    for pack in (False, True):
        [batch] = micro_batches(nothing, 8, torch.device("cpu"), pack)
        assert len(batch.targets) == len(batch.predicting) == 0


def test_only_models_without_other_mixing_of_tokens_are_packed():
    assert can_pack(tiny_model("llama").model) and can_pack(tiny_model("qwen3").model)
    assert not can_pack(tiny_model("lfm2").model) and not can_pack(tiny_model("gemma2").model)
