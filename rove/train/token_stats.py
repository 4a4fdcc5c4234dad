"""What the trainer knows of single tokens, of a few of a step's rollouts: to be looked at, beside what the sampler knew."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from rove.runs.token_stats import TrainedRollout, TrainedTurn
from rove.train.batch import Batch
from rove.train.sequences import TrainingSequence

DIGITS = 6
"""After the point; a ratio is then right to a millionth."""


class TokenStats:
    """Collects the log-probabilities and entropies of some rollouts' trained tokens while a step is taken on them.

    Args:
        samples: of the step.
        count: rollouts of which they are kept; the same ones for the same seed.
        seed: of the choice.
    """

    def __init__(self, samples: Sequence[TrainingSequence], count: int, seed: int):
        trained = sorted({(s.origin.example_key, s.origin.rollout_index) for s in samples if s.origin is not None})
        self.chosen = set(random.Random(seed).sample(trained, min(count, len(trained))))
        """Example key and sibling of each."""
        self.seen: list[tuple[TrainingSequence, torch.Tensor, torch.Tensor]] = []

    def see(self, batch: Batch, logprobs: torch.Tensor, entropies: torch.Tensor) -> None:
        """Take what is wanted of a batch, whose trained tokens these are of, [M]."""
        for place, sample in enumerate(batch.members):
            origin = sample.origin
            if origin is not None and (origin.example_key, origin.rollout_index) in self.chosen:
                mine = batch.samples == place  # in the order of the sample's own tokens: batches keep it
                self.seen.append((sample, logprobs[mine], entropies[mine]))

    def rollouts(self) -> list[TrainedRollout]:
        """What was collected."""
        found: dict[tuple[str, int], list[TrainedTurn]] = {place: [] for place in sorted(self.chosen)}
        for sample, logprobs, entropies in self.seen:
            assert sample.origin is not None
            found[sample.origin.example_key, sample.origin.rollout_index] += _turns(sample, logprobs, entropies)
        return [TrainedRollout(*place, sorted(turns, key=lambda turn: turn.turn)) for place, turns in found.items()]


def _turns(sample: TrainingSequence, logprobs: torch.Tensor, entropies: torch.Tensor) -> list[TrainedTurn]:
    """The turns of a sample; none where its first token is a sampled one, which nothing predicts."""
    assert sample.origin is not None
    if sample.mask[0]:
        return []
    advantages = [value for value, trained in zip(sample.advantages, sample.mask, strict=True) if trained]
    known, unsure = _rounded(logprobs), _rounded(entropies)
    turns, start = [], 0
    for number, count in sample.origin.turns:
        end = start + count
        if count:
            turns.append(TrainedTurn(number, known[start:end], unsure[start:end], advantages[start]))
        start = end
    return turns


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(value, DIGITS) + 0.0 for value in values.tolist()]
