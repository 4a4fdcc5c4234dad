"""From samples to tensors, a bounded number of tokens at a time.

Samples that begin alike share what they have in common: it is computed once, and its gradient is that of all of them. With
[1, 2, 7, 8] and [1, 2, 7, 9], five tokens are computed: 1 2 7 8 9, of which the first three are seen by both 8 and 9.

Axes: N tokens of a batch, R of them that predict, M trained tokens (of all samples), S samples.
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
"""Trains nothing: for a process that has less to do than the others, which may not compute without it."""


class Batch(NamedTuple):
    """Samples as tensors.

    Several trained tokens may have been predicted in the same place: siblings that begin alike have their next tokens from
    the same logits. These are computed once.
    """

    ids: torch.Tensor
    """Packed [1, N], else padded on the right [S, longest]. Padding needs no mask: attention is causal, nothing sees it."""
    positions: torch.Tensor | None
    """[1, N] when packed."""
    packing: Packing | None
    """Who sees whom when packed."""
    predicting: torch.Tensor
    """[R] places in the flattened ids whose logits count."""
    temperature: torch.Tensor
    """[R] that their logits are divided by."""
    rows: torch.Tensor
    """[M] which of them predicts each trained token; never falling."""
    targets: torch.Tensor
    """[M] the trained tokens' ids."""
    logprobs: torch.Tensor
    """[M] the sampler's."""
    advantages: torch.Tensor
    """[M]"""
    weights: torch.Tensor
    """[M] what each token's loss counts."""
    sequence_index: torch.Tensor
    """[M] the sample that each is of, counted from 0 in this batch."""
    old: torch.Tensor | None = None
    """[M] the trainer's log-probabilities before the first of several updates."""
    reference: torch.Tensor | None = None
    """[M] the reference model's."""
    sequences: tuple[TrainingSequence, ...] = ()
    """The samples themselves."""


def can_pack(model: Any) -> bool:
    """Whether samples of this model can share tokens: nothing but our attention mixes tokens, and logits are a plain product."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or [])
    return attention.is_plain(config) and "conv" not in kinds and config._attn_implementation == attention.NAME


def count_trained_tokens(samples: Sequence[TrainingSequence]) -> int:
    """Tokens of the whole step that are trained: what the loss is divided by."""
    return sum(sum(sample.mask) for sample in samples)


def micro_batches(
    samples: Sequence[TrainingSequence],
    micro_batch_tokens: int,
    device: torch.device | str = "cpu",
    pack: bool = False,
    ranks: Ranks = SINGLE_PROCESS,
) -> list[Batch]:
    """Cut samples into batches of at most `micro_batch_tokens` tokens (one sample at least).

    Args:
        samples: in any order, which does not matter.
        micro_batch_tokens: computed tokens of a batch: distinct ones when packed, else padded ones.
        device: of the tensors.
        pack: share tokens, for models that `can_pack`.
        ranks: the processes that share the batches; of several, each has as many, of about as many tokens. One that trains
            nothing fills up where there are too few.
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
    """The smallest number up to `most`, which is enough, that is enough, too."""
    least = 1
    while least < most:
        middle = (least + most) // 2
        if is_enough(middle):
            most = middle
        else:
            least = middle + 1
    return most


def _rank_of(place: int, size: int) -> int:
    """Who of so many takes what stands in this place: there and back again, so that the last to choose is the next to."""
    turn, place = divmod(place, size)
    return size - 1 - place if turn % 2 else place


def _cut_padded(samples: Sequence[TrainingSequence], most: int) -> Iterator[list[TrainingSequence]]:
    """Samples in order of their lengths, the longest first."""
    piece: list[TrainingSequence] = []
    for sample in sorted(samples, key=lambda s: -len(s.ids)):
        if piece and len(piece[0].ids) * (len(piece) + 1) > most:
            yield piece
            piece = []
        piece.append(sample)
    if piece:
        yield piece


def _padded_tokens(piece: Sequence[TrainingSequence]) -> int:
    return len(piece[0].ids) * len(piece)


class _PackedSequence(NamedTuple):
    """A sample, and where its tokens are among those of its batch; the first `shared` ones are another's too."""

    sample: TrainingSequence
    places: np.ndarray
    shared: int


def _cut_packed(samples: Sequence[TrainingSequence], most: int) -> Iterator[list[_PackedSequence]]:
    """Samples in order of their ids, so that those that begin alike stand together."""
    paths: list[_PackedSequence] = []
    count, before = 0, np.empty(0, dtype=np.int64)
    for sample in sorted(samples, key=lambda s: s.ids):
        ids = np.array(sample.ids)
        shared = _shared_prefix(before, ids)
        if paths and count + len(ids) - shared > most:
            yield paths
            paths, count, shared = [], 0, 0
        known = paths[-1].places[:shared] if paths else np.empty(0, dtype=np.int64)
        new = np.arange(count, count + len(ids) - shared)
        paths.append(_PackedSequence(sample, np.concatenate([known, new]), shared))
        count, before = count + len(new), ids
    if paths:
        yield paths


def _packed_tokens(piece: Sequence[_PackedSequence]) -> int:
    return sum(len(path.places) - path.shared for path in piece)


def _shared_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens two sequences have in common at their beginning."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def _packed_batch(paths: list[_PackedSequence], device: torch.device | str) -> Batch:
    ids = np.concatenate([np.array(path.sample.ids[path.shared :], dtype=np.int64) for path in paths])
    positions = np.concatenate([np.arange(path.shared, len(path.places)) for path in paths])
    packing = Packing([path.places for path in paths], np.array([path.shared for path in paths]), torch.device(device))
    return _batch(
        [path.sample for path in paths],
        [path.places for path in paths],
        torch.from_numpy(ids)[None].to(device),
        torch.from_numpy(positions)[None].to(device),
        packing,
    )


def _padded_batch(samples: Sequence[TrainingSequence], device: torch.device | str) -> Batch:
    longest = max(len(sample.ids) for sample in samples)
    ids = torch.tensor([[*sample.ids, *[0] * (longest - len(sample.ids))] for sample in samples], device=device)
    places = [np.arange(len(sample.ids)) + i * longest for i, sample in enumerate(samples)]
    return _batch(samples, places, ids, None, None)


def _batch(
    samples: Sequence[TrainingSequence],
    places: Sequence[np.ndarray],
    ids: torch.Tensor,
    positions: torch.Tensor | None,
    packing: Packing | None,
) -> Batch:
    """The trained tokens of samples whose tokens are at these places of the flattened ids."""
    before, columns = [], []
    for i, (sample, where) in enumerate(zip(samples, places, strict=True)):
        trained = np.flatnonzero(np.array(sample.mask[1:], dtype=bool)) + 1
        before.append(where[trained - 1])
        values = (np.array(values)[trained] for values in (sample.ids, sample.logprobs, sample.advantages))
        same = [np.full(len(trained), value) for value in (sample.temperature, sample.weight, i)]
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
