"""From samples to tensors, a bounded number of tokens at a time.

Axes: B rows, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from rove.train.samples import Sample


class Batch(NamedTuple):
    """Samples as tensors [B, T], padded on the right; `temperature` is [B].

    Padding needs no mask of its own: attention is causal, so nothing before it sees it, and `mask` is false on it.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    logprobs: torch.Tensor
    advantages: torch.Tensor
    temperature: torch.Tensor


def trained_tokens(samples: Sequence[Sample]) -> int:
    """Tokens of the whole step that are trained: what the loss is divided by."""
    return sum(sum(sample.mask) for sample in samples)


def micro_batches(
    samples: Sequence[Sample], micro_batch_tokens: int, device: torch.device | str = "cpu"
) -> list[Batch]:
    """Cut samples into batches of at most `micro_batch_tokens` padded tokens (one sample at least), longest first."""
    batches: list[list[Sample]] = []
    for sample in sorted(samples, key=lambda s: -len(s.ids)):
        if batches and len(batches[-1][0].ids) * (len(batches[-1]) + 1) <= micro_batch_tokens:
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return [_collate(batch, device) for batch in batches]


def _collate(samples: Sequence[Sample], device: torch.device | str) -> Batch:
    longest = max(len(sample.ids) for sample in samples)

    def padded(name: str, dtype: torch.dtype) -> torch.Tensor:
        rows = [getattr(sample, name) for sample in samples]
        return torch.tensor([list(row) + [0] * (longest - len(row)) for row in rows], dtype=dtype, device=device)

    return Batch(
        ids=padded("ids", torch.long),
        mask=padded("mask", torch.bool),
        logprobs=padded("logprobs", torch.float32),
        advantages=padded("advantages", torch.float32),
        temperature=torch.tensor([sample.temperature for sample in samples], device=device),
    )
