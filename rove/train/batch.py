"""Training batches: tensors from sequences, with a bounded number of tokens each.

Sequences with a common prefix share it: the prefix is computed once, and its gradient is the sum over the sequences. For [1, 2,
7, 8] and [1, 2, 7, 9], five tokens are computed: 1 2 7 8 9. Both 8 and 9 attend to the first three.

Axes: N tokens of a batch, R positions that predict a trained token, M trained tokens (of all sequences), S sequences.
"""

# Many functions of torch have no types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rove.models import attention
from rove.models.attention import Packing
from rove.train.sequences import TrainingSequence
from rove.train.worker_group import SINGLE_PROCESS, Ranks

Indices = NDArray[np.int64]
Piece = TypeVar("Piece")
"""The sequences of one batch."""

EMPTY_SEQUENCE = TrainingSequence([0, 0], [False, False], [0.0, 0.0], [0.0, 0.0])
"""A sequence that trains nothing, for a process with fewer batches than other processes: collective operations need all
processes."""


class Batch(NamedTuple):
    """Sequences as tensors.

    Several trained tokens may be predicted at the same position: sequences that start alike predict their next tokens from the
    same logits, which are computed once.
    """

    ids: torch.Tensor
    """[1, N] packed, or [S, longest] padded on the right. Padding needs no mask: causal attention does not see it."""
    positions: torch.Tensor | None
    """[1, N] when packed."""
    packing: Packing | None
    """Attention structure, if packed."""
    predicting: torch.Tensor
    """[R] indices of the flattened ids whose logits are needed."""
    temperature: torch.Tensor
    """[R] temperature of the logits."""
    rows: torch.Tensor
    """[M] index into `predicting` for each trained token; non-decreasing."""
    targets: torch.Tensor
    """[M] ids of the trained tokens."""
    logprobs: torch.Tensor
    """[M] the sampler's log-probabilities."""
    advantages: torch.Tensor
    """[M] advantage of each trained token."""
    weights: torch.Tensor
    """[M] weight of each token's loss."""
    sequence_index: torch.Tensor
    """[M] sequence of each token, counted from 0 in this batch."""
    old: torch.Tensor | None = None
    """[M] the trainer's log-probabilities before the first of several iterations."""
    reference: torch.Tensor | None = None
    """[M] log-probabilities of the reference model."""
    sequences: tuple[TrainingSequence, ...] = ()
    """The sequences themselves."""


def can_pack(model: Any) -> bool:
    """Return whether sequences of this model can share tokens: only rove's attention and convolutions mix tokens, and logits are
    a plain product.
    """
    if model.config.model_type == "lfm2":
        # Here, because it reads transformers' module of LFM2, which other models do not need.
        from rove.models.convolution import RECEIVES_PACKING

        if not RECEIVES_PACKING:
            return False
    return attention.is_plain(model.config) and model.config._attn_implementation == attention.NAME


def count_trained_tokens(samples: Sequence[TrainingSequence]) -> int:
    """Return the number of trained tokens of the step, by which the loss is divided."""
    return sum(sequence.num_trained for sequence in samples)


def micro_batches(
    samples: Sequence[TrainingSequence],
    micro_batch_tokens: int,
    device: torch.device | str = "cpu",
    pack: bool = False,
    ranks: Ranks = SINGLE_PROCESS,
) -> list[Batch]:
    """Cut sequences into batches of at most `micro_batch_tokens` tokens (at least one sequence each).

    Args:
        samples: Sequences; their order does not matter.
        micro_batch_tokens: Maximum computed tokens per batch. Shared tokens count once if packed; otherwise, padding counts, too.
        ranks: Processes that share the batches. Each gets the same number of batches with about the same number of
            tokens; empty sequences fill the gaps.
    """
    if pack:
        pieces = _shares(samples, micro_batch_tokens, ranks, _cut_packed, _packed_tokens)
        return [_packed_batch(piece, device) for piece in pieces]
    # Models that mix tokens in other ways than our attention and convolutions need every sequence by itself.
    padded = _shares(samples, micro_batch_tokens, ranks, _cut_padded, _padded_tokens)
    return [_padded_batch(piece, device) for piece in padded]


def _shares(
    samples: Sequence[TrainingSequence],
    budget: int,
    ranks: Ranks,
    cut: Callable[[Sequence[TrainingSequence], int], Iterator[Piece]],
    count_tokens: Callable[[Piece], int],
) -> list[Piece]:
    """Return the pieces of this process; `cut` cuts sequences into pieces within a token budget."""
    if ranks.size == 1:
        return list(cut(samples, budget))

    def count_pieces(tokens: int) -> int:
        return sum(1 for _ in cut(samples, tokens))

    # Every process needs the same number of pieces. With that number, smaller pieces balance the work better.
    number = math.ceil(count_pieces(budget) / ranks.size)
    smallest = _smallest_budget(lambda tokens: count_pieces(tokens) <= number * ranks.size, budget)
    pieces = sorted(cut(samples, smallest), key=count_tokens, reverse=True)
    mine = [piece for index, piece in enumerate(pieces) if ranks.rank == _rank_of(index, ranks.size)]
    [idle] = cut([EMPTY_SEQUENCE], budget)
    return [*mine, *[idle] * (number - len(mine))]


def _smallest_budget(is_enough: Callable[[int], bool], most: int) -> int:
    """Return the smallest number up to `most` for which `is_enough` is true (binary search)."""
    least = 1
    while least < most:
        middle = (least + most) // 2
        if is_enough(middle):
            most = middle
        else:
            least = middle + 1
    return most


def _rank_of(index: int, size: int) -> int:
    """Return the process of the batch with this index, in boustrophedon order (0 1 2 2 1 0 …), which balances sorted batches."""
    turn, column = divmod(index, size)
    return size - 1 - column if turn % 2 else column


def _cut_padded(samples: Sequence[TrainingSequence], most: int) -> Iterator[list[TrainingSequence]]:
    """Cut sequences sorted by length, longest first."""
    piece: list[TrainingSequence] = []
    # Sequences of similar length in one batch need little padding.
    for sequence in sorted(samples, key=lambda sequence: -len(sequence.ids)):
        if piece and len(piece[0].ids) * (len(piece) + 1) > most:
            yield piece
            piece = []
        piece.append(sequence)
    if piece:
        yield piece


def _padded_tokens(piece: Sequence[TrainingSequence]) -> int:
    return len(piece[0].ids) * len(piece)


class _PackedSequence(NamedTuple):
    """A sequence and the batch indices of its tokens; the first `shared` tokens also belong to another sequence."""

    sequence: TrainingSequence
    indices: Indices
    shared: int


def _cut_packed(samples: Sequence[TrainingSequence], most: int) -> Iterator[list[_PackedSequence]]:
    """Cut sequences sorted by ids, so that equal prefixes are adjacent."""
    piece: list[_PackedSequence] = []
    count = 0
    previous_ids = np.empty(0, dtype=np.int64)
    for sequence in sorted(samples, key=lambda sequence: sequence.ids):
        ids = np.array(sequence.ids)
        shared = _shared_prefix(previous_ids, ids)
        if piece and count + len(ids) - shared > most:
            yield piece
            piece, count, shared = [], 0, 0
        prefix = piece[-1].indices[:shared] if piece else np.empty(0, dtype=np.int64)
        new_indices = np.arange(count, count + len(ids) - shared)
        piece.append(_PackedSequence(sequence, np.concatenate([prefix, new_indices]), shared))
        count += len(new_indices)
        previous_ids = ids
    if piece:
        yield piece


def _packed_tokens(piece: Sequence[_PackedSequence]) -> int:
    return sum(len(packed.indices) - packed.shared for packed in piece)


def _shared_prefix(a: Indices, b: Indices) -> int:
    """Return the length of the common prefix."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def _packed_batch(piece: Sequence[_PackedSequence], device: torch.device | str) -> Batch:
    indices = [packed.indices for packed in piece]
    shared = np.array([packed.shared for packed in piece])
    ids = np.concatenate([np.array(packed.sequence.ids[packed.shared :], dtype=np.int64) for packed in piece])
    positions = np.concatenate([np.arange(packed.shared, len(packed.indices)) for packed in piece])
    packing = Packing(indices, shared, torch.device(device))
    return _batch(
        [packed.sequence for packed in piece],
        indices,
        torch.from_numpy(ids)[None].to(device),
        torch.from_numpy(positions)[None].to(device),
        packing,
    )


def _padded_batch(samples: Sequence[TrainingSequence], device: torch.device | str) -> Batch:
    longest = max(len(sequence.ids) for sequence in samples)
    rows = [sequence.ids + [0] * (longest - len(sequence.ids)) for sequence in samples]
    indices = [np.arange(len(sequence.ids)) + row * longest for row, sequence in enumerate(samples)]
    return _batch(samples, indices, torch.tensor(rows, device=device), None, None)


def _batch(
    samples: Sequence[TrainingSequence],
    indices: Sequence[Indices],
    ids: torch.Tensor,
    positions: torch.Tensor | None,
    packing: Packing | None,
) -> Batch:
    """Build the tensors of a batch; `indices` are the positions of each sequence's tokens in the flattened ids."""
    predictors: list[Indices] = []
    columns: list[NDArray[np.float64]] = []
    for number, (sequence, own_indices) in enumerate(zip(samples, indices, strict=True)):
        # The first token is never trained, because nothing predicts it.
        trained = np.flatnonzero(np.array(sequence.mask[1:], dtype=bool)) + 1
        predictors.append(own_indices[trained - 1])
        by_token = [np.array(values)[trained] for values in (sequence.ids, sequence.logprobs, sequence.advantages)]
        by_sequence = [np.full(len(trained), value) for value in (sequence.temperature, sequence.weight, number)]
        columns.append(np.stack([*by_token, *by_sequence]))
    predicting = np.concatenate(predictors)
    targets, logprobs, advantages, temperature, weights, numbers = np.concatenate(columns, axis=1)

    # Trained tokens with the same predictor and temperature follow one another, and share a row of logits.
    order = np.lexsort((temperature, predicting))
    pairs = np.stack([predicting[order], temperature[order]])
    starts_row = np.ones(pairs.shape[1], dtype=bool)
    starts_row[1:] = (pairs[:, 1:] != pairs[:, :-1]).any(0)

    def tensor(values: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(values).to(ids.device, dtype)

    return Batch(
        ids,
        positions,
        packing,
        predicting=tensor(pairs[0, starts_row], torch.long),
        temperature=tensor(pairs[1, starts_row], torch.float32),
        rows=tensor(np.cumsum(starts_row) - 1, torch.long),
        targets=tensor(targets[order], torch.long),
        logprobs=tensor(logprobs[order], torch.float32),
        advantages=tensor(advantages[order], torch.float32),
        weights=tensor(weights[order], torch.float32),
        sequence_index=tensor(numbers[order], torch.long),
        sequences=tuple(samples),
    )
