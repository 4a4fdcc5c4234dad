"""Penalties on tokens that a conversation has already.

Axes: P rows with a penalty, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rove.core.protocols import SamplingParams


class Penalties:
    """How often each row has had each token, and what that takes off its logits.

    The repetition penalty (Keskar et al. 2019, arXiv 1909.05858) is over prompt and answer, as transformers and vLLM have
    it; presence and frequency penalties are over the answer alone, as OpenAI's and vLLM's. It holds 5 bytes for each entry
    of the vocabulary of each of its rows.

    Args:
        vocab: entries of the vocabulary.
        device: where logits are.
    """

    def __init__(self, vocab: int, device: torch.device | str = "cpu"):
        self._counts = torch.zeros(0, vocab, device=device)  # of the answer
        self._had = torch.zeros(0, vocab, dtype=torch.bool, device=device)  # by prompt or answer
        self._weights = torch.zeros(3, 0, device=device)  # repetition, presence, frequency

    def add(self, rows: Sequence[tuple[SamplingParams, Sequence[int], Sequence[int]]]) -> None:
        """More rows: how they sample, their prompt, and what there is of their answer."""
        counts = self._counts.new_zeros(len(rows), self._counts.shape[1])
        had = self._had.new_zeros(counts.shape)
        for i, (_, prompt, answer) in enumerate(rows):
            said = torch.tensor([*answer], dtype=torch.long, device=counts.device)
            counts[i].index_add_(0, said, torch.ones_like(said, dtype=counts.dtype))
            had[i, torch.tensor([*prompt, *answer], dtype=torch.long, device=counts.device)] = True
        weights = [
            (
                1.0 if sampling.repetition_penalty is None else sampling.repetition_penalty,
                sampling.presence_penalty or 0.0,
                sampling.frequency_penalty or 0.0,
            )
            for sampling, _, _ in rows
        ]
        self._counts = torch.cat([self._counts, counts])
        self._had = torch.cat([self._had, had])
        self._weights = torch.cat([self._weights, self._weights.new_tensor(weights).reshape(-1, 3).T], 1)

    def keep(self, order: Sequence[int]) -> None:
        """Go on with these rows, in this order."""
        index = torch.tensor(order, dtype=torch.long, device=self._counts.device)
        self._counts, self._had, self._weights = self._counts[index], self._had[index], self._weights[:, index]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """The penalised logits [P, V]."""
        repetition, presence, frequency = self._weights[:, :, None]
        # Above 0 divided, else multiplied: the smaller of the two for a penalty above 1, the larger for one below. Asking
        # each logit for its sign takes torch.where ten times as long.
        side = torch.where(repetition < 1, -1.0, 1.0)
        repeated = torch.minimum(logits * (side / repetition), logits * (side * repetition)) * side
        logits = torch.where(self._had, repeated, logits)
        logits = torch.addcmul(logits, frequency, self._counts, value=-1)
        return torch.addcmul(logits, presence, self._counts.clamp_max(1), value=-1)

    def count(self, ids: torch.Tensor) -> None:
        """Each row's answer has one more token [P]."""
        rows = torch.arange(len(ids), device=ids.device)
        self._counts[rows, ids] += 1
        self._had[rows, ids] = True


def has_penalty(sampling: SamplingParams) -> bool:
    """Whether any penalty is on."""
    return bool(sampling.repetition_penalty not in (None, 1) or sampling.presence_penalty or sampling.frequency_penalty)
