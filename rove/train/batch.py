"""Training batches: tensors from sequences, with a bounded number of tokens each.

Sequences that start alike share their common prefix: it is computed once, and its gradient is the sum of theirs. For [1, 2, 7,
8] and [1, 2, 7, 9], five tokens are computed, 1 2 7 8 9, the first three of which both 8 and 9 attend to.

Axes: N tokens of a batch, R positions that predict a trained token, M trained tokens (of all sequences), S sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rove.models import attention
from rove.models.attention import Packing
from rove.train.sequences import TrainingSequence
from rove.train.worker_group import SINGLE_PROCESS, Ranks

EMPTY_SEQUENCE = TrainingSequence([0, 0], [False, False], [0.0, 0.0], [0.0, 0.0])
"""Trains nothing; for a process with fewer batches than others, since collective operations need all processes."""


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
    """[M]"""
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
    """Return whether sequences of this model can share tokens: only our attention mixes tokens, and logits are a plain
    product.
    """
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or [])
    return attention.is_plain(config) and "conv" not in kinds and config._attn_implementation == attention.NAME


def count_trained_tokens(samples: Sequence[TrainingSequence]) -> int:
    """Return the number of trained tokens of the step, the divisor of the loss."""
    return sum(sum(sequence.mask) for sequence in samples)


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
        micro_batch_tokens: Computed tokens per batch: distinct ones if packed, else including padding.
        ranks: Processes that share the batches. Each gets the same number of batches with about as many tokens; empty sequences
            fill up.
    """
    ways: Any = (_cut_packed, _packed_batch, _packed_tokens) if pack else (_cut_padded, _padded_batch, _padded_tokens)
    cut, make, count = ways
    if ranks.size == 1:
        return [make(piece, device) for piece in cut(samples, micro_batch_tokens)]
    wanted = -(-len(list(cut(samples, micro_batch_tokens))) // ranks.size)  # pieces of each process
    most = _smallest_budget(lambda most: len(list(cut(samples, most))) <= wanted * ranks.size, micro_batch_tokens)
    pieces = sorted(cut(samples, most), key=count, reverse=True)
    mine = [piece for i, piece in enumerate(pieces) if ranks.rank == _rank_of(i, ranks.size)]
    idle = list(cut([EMPTY_SEQUENCE], micro_batch_tokens))
    return [make(piece, device) for piece in [*mine, *idle * (wanted - len(mine))]]


def _smallest_budget(is_enough: Callable[[int], bool], most: int) -> int:
    """Return the smallest number up to `most` that is enough (binary search)."""
    least = 1
    while least < most:
        middle = (least + most) // 2
        if is_enough(middle):
            most = middle
        else:
            least = middle + 1
    return most


def _rank_of(place: int, size: int) -> int:
    """Return the process of the batch at `place`, in boustrophedon order (0 1 2 2 1 0 …), which balances sorted batches."""
    turn, place = divmod(place, size)
    return size - 1 - place if turn % 2 else place


def _cut_padded(samples: Sequence[TrainingSequence], most: int) -> Iterator[list[TrainingSequence]]:
    """Cut sequences sorted by length, longest first."""
    piece: list[TrainingSequence] = []
    for sequence in sorted(samples, key=lambda s: -len(s.ids)):
        if piece and len(piece[0].ids) * (len(piece) + 1) > most:
            yield piece
            piece = []
        piece.append(sequence)
    if piece:
        yield piece


def _padded_tokens(piece: Sequence[TrainingSequence]) -> int:
    return len(piece[0].ids) * len(piece)


class _PackedSequence(NamedTuple):
    """A sequence and the batch indices of its tokens; the first `shared` ones belong to another sequence too."""

    sequence: TrainingSequence
    places: np.ndarray
    shared: int


def _cut_packed(samples: Sequence[TrainingSequence], most: int) -> Iterator[list[_PackedSequence]]:
    """Cut sequences sorted by ids, so that equal prefixes are adjacent."""
    paths: list[_PackedSequence] = []
    count, before = 0, np.empty(0, dtype=np.int64)
    for sequence in sorted(samples, key=lambda s: s.ids):
        ids = np.array(sequence.ids)
        shared = _shared_prefix(before, ids)
        if paths and count + len(ids) - shared > most:
            yield paths
            paths, count, shared = [], 0, 0
        known = paths[-1].places[:shared] if paths else np.empty(0, dtype=np.int64)
        new = np.arange(count, count + len(ids) - shared)
        paths.append(_PackedSequence(sequence, np.concatenate([known, new]), shared))
        count, before = count + len(new), ids
    if paths:
        yield paths


def _packed_tokens(piece: Sequence[_PackedSequence]) -> int:
    return sum(len(path.places) - path.shared for path in piece)


def _shared_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Return the length of the common prefix."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def _packed_batch(paths: list[_PackedSequence], device: torch.device | str) -> Batch:
    ids = np.concatenate([np.array(path.sequence.ids[path.shared :], dtype=np.int64) for path in paths])
    positions = np.concatenate([np.arange(path.shared, len(path.places)) for path in paths])
    packing = Packing([path.places for path in paths], np.array([path.shared for path in paths]), torch.device(device))
    return _batch(
        [path.sequence for path in paths],
        [path.places for path in paths],
        torch.from_numpy(ids)[None].to(device),
        torch.from_numpy(positions)[None].to(device),
        packing,
    )


def _padded_batch(samples: Sequence[TrainingSequence], device: torch.device | str) -> Batch:
    longest = max(len(sequence.ids) for sequence in samples)
    ids = torch.tensor([[*sequence.ids, *[0] * (longest - len(sequence.ids))] for sequence in samples], device=device)
    places = [np.arange(len(sequence.ids)) + i * longest for i, sequence in enumerate(samples)]
    return _batch(samples, places, ids, None, None)


def _batch(
    samples: Sequence[TrainingSequence],
    places: Sequence[np.ndarray],
    ids: torch.Tensor,
    positions: torch.Tensor | None,
    packing: Packing | None,
) -> Batch:
    """Build the tensors of sequences whose tokens are at `places` of the flattened ids."""
    before, columns = [], []
    for i, (sequence, where) in enumerate(zip(samples, places, strict=True)):
        trained = np.flatnonzero(np.array(sequence.mask[1:], dtype=bool)) + 1
        before.append(where[trained - 1])
        values = (np.array(values)[trained] for values in (sequence.ids, sequence.logprobs, sequence.advantages))
        same = [np.full(len(trained), value) for value in (sequence.temperature, sequence.weight, i)]
        columns.append(np.stack([*values, *same]))
    predicting = np.concatenate(before)
    targets, logprobs, advantages, temperature, weights, number = np.concatenate(columns, axis=1)
    order = np.lexsort((temperature, predicting))
    pairs = np.stack([predicting[order], temperature[order]])
    first = np.ones(pairs.shape[1], dtype=bool)
    first[1:] = (pairs[:, 1:] != pairs[:, :-1]).any(0)

    def tensor(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(values).to(ids.device, dtype)

    return Batch(
        ids,
        positions,
        packing,
        predicting=tensor(pairs[0, first], torch.long),
        temperature=tensor(pairs[1, first], torch.float32),
        rows=tensor(np.cumsum(first) - 1, torch.long),
        targets=tensor(targets[order], torch.long),
        logprobs=tensor(logprobs[order], torch.float32),
        advantages=tensor(advantages[order], torch.float32),
        weights=tensor(weights[order], torch.float32),
        sequence_index=tensor(number[order], torch.long),
        sequences=tuple(samples),
    )
