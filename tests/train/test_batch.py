from __future__ import annotations

import pytest
import torch
from fakes import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.models import convolution
from rove.train.batch import Batch, _smallest_budget, can_pack, count_trained_tokens, micro_batches
from rove.train.sequences import TrainingSequence

Term = tuple[tuple[int, ...], int, float, float, float]
"""The prefix of a trained token, the token, its sampling log-probability, advantage and temperature."""


@st.composite
def training_sequences(draw: st.DrawFn) -> list[TrainingSequence]:
    """Generate sequences of few different tokens, so that many share prefixes."""
    sequences = []
    for number in range(draw(st.integers(0, 12))):
        mask = draw(st.lists(st.booleans(), min_size=1, max_size=20))
        sequences.append(
            TrainingSequence(
                ids=[*draw(st.sampled_from([[], [7] * 5, [7] * 9, [8, 9]])), *draw(_token_ids(len(mask)))][
                    -len(mask) :
                ],
                mask=mask,
                logprobs=[-1.0 - i if m else 0.0 for i, m in enumerate(mask)],
                advantages=[0.5 + number if m else 0.0 for m in mask],
                temperature=draw(st.sampled_from([1.0, 1.25])),
            )
        )
    return sequences


def _token_ids(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, 3), min_size=count, max_size=count)


def expected_terms(sample: TrainingSequence) -> list[Term]:
    return [
        (tuple(sample.ids[:t]), sample.ids[t], sample.logprobs[t], sample.advantages[t], sample.temperature)
        for t in range(1, len(sample.ids))
        if sample.mask[t]
    ]


def visible_tokens(batch: Batch) -> dict[int, tuple[int, ...]]:
    """Map the index of each computed token to the tokens it attends to, itself last."""
    ids = batch.ids.flatten().tolist()
    if batch.packing is None:
        width = batch.ids.shape[1]
        return {i: tuple(ids[i // width * width : i + 1]) for i in range(len(ids))}
    visible, queried = {}, []
    for rows in batch.packing.padded_rows:
        for index in rows.real_indices.tolist():
            b, j = divmod(index, rows.queries.shape[1])
            token = int(rows.queries[b, j])
            queried.append(token)
            keys = rows.keys[b] if rows.bias is None else rows.keys[b][rows.bias[b, 0, j] == 0]
            keys = keys[: j + 1] if rows.bias is None else keys
            assert int(keys[-1]) == token
            assert batch.positions is not None and batch.positions[0, token] == len(keys) - 1
            visible[token] = tuple(ids[int(key)] for key in keys)
    assert sorted(queried) == list(range(len(ids)))
    assert [queried[i] for i in batch.packing.token_order.tolist()] == list(range(len(ids)))
    path_indices, offsets, shared = batch.packing.flat_paths
    for b, first in enumerate(shared.tolist()):
        path = path_indices[offsets[b] : offsets[b + 1]].tolist()
        assert all(visible[path[i]] == tuple(ids[index] for index in path[: i + 1]) for i in range(first, len(path)))
    return visible


def terms(batch: Batch) -> dict[int, list[Term]]:
    """Map the index of each sequence of the batch to its trained tokens."""
    assert batch.ids.dtype == torch.long
    visible, terms_by_sequence = visible_tokens(batch), {}
    rows = batch.rows.tolist()
    assert rows == sorted(rows)
    for m, row in enumerate(rows):
        term = (
            visible[int(batch.predicting[row])],
            int(batch.targets[m]),
            batch.logprobs[m].item(),
            batch.advantages[m].item(),
            batch.temperature[row].item(),
        )
        terms_by_sequence.setdefault(int(batch.sequence_index[m]), []).append(term)
    return terms_by_sequence


@pytest.mark.broad
@settings(deadline=None, max_examples=300)
@given(training_sequences(), st.integers(1, 120), st.booleans())
def test_every_trained_token_is_predicted_once_from_its_prefix(
    given_samples: list[TrainingSequence], budget: int, pack: bool
):
    batches = micro_batches(given_samples, budget, pack=pack)
    found_terms = [sorted(row_terms) for batch in batches for row_terms in terms(batch).values()]
    assert sorted(found_terms) == sorted(
        sorted(expected_terms(sequence)) for sequence in given_samples if any(sequence.mask[1:])
    )
    for batch in batches:
        assert batch.ids.numel() <= budget or len(batch.sequence_index.unique()) <= 1
        predictions = torch.stack([batch.predicting.double(), batch.temperature.double()])
        assert predictions.unique(dim=1).shape == predictions.shape  # no position is computed twice


def test_sequences_that_start_alike_share_their_tokens_and_their_logits():
    # The example at the top of rove/train/batch.py, with the last two tokens trained.
    mask = [False, False, True, True]
    pair = [TrainingSequence([1, 2, 7, last], mask, [0.0] * 4, [0.0, 0.0, 1.0, 1.0]) for last in (8, 9)]
    [batch] = micro_batches(pair, 10, pack=True)
    assert batch.ids.tolist() == [[1, 2, 7, 8, 9]]
    assert batch.predicting.tolist() == [1, 2]  # 2 predicts 7 twice, and 7 predicts 8 and 9
    assert (batch.rows.tolist(), sorted(batch.targets.tolist())) == ([0, 0, 1, 1], [7, 7, 8, 9])


@settings(deadline=None)
@given(training_sequences())
def test_shared_prefixes_are_computed_once(given_samples: list[TrainingSequence]):
    [*batches] = micro_batches(given_samples, 10_000, pack=True)
    prefixes = {tuple(sequence.ids[: i + 1]) for sequence in given_samples for i in range(len(sequence.ids))}
    assert sum(batch.ids.numel() for batch in batches) == len(prefixes)


@settings(deadline=None)
@given(training_sequences(), st.integers(1, 120))
def test_batches_are_sorted_by_decreasing_length_and_fill_the_budget(
    given_samples: list[TrainingSequence], budget: int
):
    shapes = [tuple(batch.ids.shape) for batch in micro_batches(given_samples, budget)]
    assert all(rows == 1 or rows * longest <= budget for rows, longest in shapes)
    assert all((rows + 1) * longest > budget for rows, longest in shapes[:-1])
    assert [longest for _, longest in shapes] == sorted((longest for _, longest in shapes), reverse=True)
    assert sum(rows for rows, _ in shapes) == len(given_samples)


def test_a_sequence_longer_than_the_budget_gets_its_own_batch():
    long, short = (TrainingSequence([n] * n, [True] * n, [0.0] * n, [1.0] * n) for n in (10, 3))
    assert [tuple(batch.ids.shape) for batch in micro_batches([short, long, short], 6)] == [(1, 10), (2, 3)]
    packed = micro_batches([short, long, short], 6, pack=True)
    assert [batch.ids.numel() for batch in packed] == [3, 10]
    assert len(packed[0].sequence_index.unique()) == 2


@given(st.integers(1, 10_000), st.integers(1, 12_000))
def test_the_smallest_budget_is_found_by_halving(most: int, needed: int):
    tried: list[int] = []

    def is_enough(tokens: int) -> bool:
        tried.append(tokens)
        return tokens >= needed

    assert _smallest_budget(is_enough, most) == min(needed, most)
    assert len(tried) <= most.bit_length()  # each try cuts all sequences


def test_the_first_token_is_neither_counted_nor_trained():
    sequences = [TrainingSequence([1, 2, 3], [True, False, False], [0.0] * 3, [1.0] * 3)]
    assert count_trained_tokens(sequences) == 0
    for pack in (False, True):
        [batch] = micro_batches(sequences, 8, torch.device("cpu"), pack)
        assert len(batch.targets) == len(batch.predicting) == 0


def test_convolutions_that_do_not_receive_the_packing_are_not_packed(monkeypatch: pytest.MonkeyPatch):
    # As in transformers 5.12 and earlier, where the layers pass it only to the attention.
    monkeypatch.setattr(convolution, "RECEIVES_PACKING", False)
    assert not can_pack(tiny_model("lfm2").model)


def test_models_with_plain_attention_and_short_convolutions_can_be_packed():
    assert all(can_pack(tiny_model(name).model) for name in ("llama", "qwen3"))
    assert can_pack(tiny_model("lfm2").model) == convolution.RECEIVES_PACKING
    assert not can_pack(tiny_model("gemma2").model)
