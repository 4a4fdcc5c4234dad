"""What learns: a model's trainer and its reference, whole in one process or in parts in several.

Where several train it, each has a learner of its own, and all are told the same (`rove.train.worker_group.Team`).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError
from rove.models.load import LoadedModel, clone_model, copy_weights, disable_adapters, trainable_parameters
from rove.runs.run import Run
from rove.runs.token_stats import TrainedRollout, TrainedTurn
from rove.train.batch import Batch, can_pack, count_trained_tokens, micro_batches
from rove.train.checkpoint import recover, restore_checkpoint, save_checkpoint
from rove.train.config import TrainingConfig
from rove.train.lora import adapter_dropout
from rove.train.losses import Loss
from rove.train.progress import OnProgress, counted, ignore
from rove.train.sequences import TrainingSequence
from rove.train.sharding import gather_weights
from rove.train.trainer import frozen_logprobs, make_trainer, shard_copy
from rove.train.worker_group import SINGLE_PROCESS, Ranks, Team

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
        self.records: list[tuple[TrainingSequence, torch.Tensor, torch.Tensor]] = []

    def add(self, batch: Batch, logprobs: torch.Tensor, entropies: torch.Tensor) -> None:
        """Take what is wanted of a batch, whose trained tokens these are of, [M]."""
        for place, sample in enumerate(batch.sequences):
            origin = sample.origin
            if origin is not None and (origin.example_key, origin.rollout_index) in self.chosen:
                mine = batch.sequence_index == place  # in the order of the sample's own tokens: batches keep it
                self.records.append((sample, logprobs[mine], entropies[mine]))

    def rollouts(self) -> list[TrainedRollout]:
        """What was collected."""
        found: dict[tuple[str, int], list[TrainedTurn]] = {place: [] for place in sorted(self.chosen)}
        for sample, logprobs, entropies in self.records:
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


logger = logging.getLogger(__name__)

MISMATCH_METRICS = ("mismatch_kl/all/mean", "logprob_diff/max")
"""Measures of how far sampler and trainer are apart."""


class Objective(NamedTuple):
    """What is trained for."""

    loss: Loss
    entropy_bonus: float = 0.0
    num_iterations: int = 1
    """Optimizer steps on the same samples."""
    log_token_stats: int = 0
    """Rollouts of which the trainer's log-probabilities and entropies are kept; see `TokenStats`."""
    reference: str | None = None
    """The loss knows what another model says: "first", the model as training starts from it, or "moving"."""


class Learner:
    """A model in training.

    Args:
        config: settings of the run.
        objective: what is trained for.
        loaded: the model as training starts from it, not yet resumed. Alone it is trained itself. With others, parts of a copy
            are, and `gather` brings the weights back into this one, in the first process.
        ranks: the processes that train it.
        on_progress: called after every micro-batch.

    Raises:
        ConfigError: the settings ask for what cannot be done with this model.
    """

    def __init__(
        self,
        config: TrainingConfig,
        objective: Objective,
        loaded: LoadedModel,
        ranks: Ranks = SINGLE_PROCESS,
        on_progress: OnProgress = ignore,
    ):
        if config.mixed_precision and ranks.size == 1:
            raise ConfigError(
                "mixed_precision is for several processes that train together (torchrun); leave it out, or take bf16_backward "
                "on a CPU"
            )
        self.config = config
        self.objective = objective
        self.loaded = loaded
        self.ranks = ranks
        self.reference: Any = None
        if objective.reference is not None:
            whole = clone_model(loaded.model)
            if objective.reference == "first":
                disable_adapters(whole)
            self.reference = shard_copy(whole, ranks, config.mixed_precision)
        self.on_progress = on_progress
        self.trainer = make_trainer(config, loaded, ranks, on_progress)
        self.token_stats: list[TrainedRollout] = []
        """What the last update saw of single tokens."""

    @property
    def moving_reference(self) -> Any:
        """The reference model where its weights change, so that checkpoints must have them; else None."""
        return self.reference if self.objective.reference == "moving" else None

    def update(self, step: int, samples: Sequence[TrainingSequence], lr_scale: float) -> dict[str, float]:
        """Take the optimizer steps of a step of training; returns what the last one measured.

        What tells whether sampler and trainer agree is of the first: from the second on they are meant to differ.

        Raises:
            TrainingError: loss or gradient are not finite; the weights are those before.
        """
        model, objective = self.trainer.model, self.objective
        batches = self._batches(samples)
        if self.reference is not None:
            batches = [
                batch._replace(reference=frozen_logprobs(self.reference, batch))
                for batch in counted(batches, "reference micro-batches", self.on_progress)
            ]
        if objective.num_iterations > 1:
            batches = [batch._replace(old=frozen_logprobs(model, batch)) for batch in batches]
        stats = TokenStats(samples, objective.log_token_stats, derive_seed(self.config.seed, "token_stats", step))
        divisor, see = count_trained_tokens(samples), stats.add if stats.chosen else None
        with adapter_dropout(model, derive_seed(self.config.seed, "dropout", step)):
            measured = [
                self.trainer.step(
                    batches, objective.loss, divisor, objective.entropy_bonus, lr_scale, None if update else see
                )
                for update in range(objective.num_iterations)
            ]
        stats.records = self.ranks.all_gather(stats.records)
        self.token_stats = stats.rollouts()
        return measured[-1] | {name: measured[0][name] for name in MISMATCH_METRICS}

    def mean_loss(self, samples: Sequence[TrainingSequence]) -> float:
        """Mean loss per trained token, without training (validation)."""
        return self.trainer.mean_loss(self._batches(samples), self.objective.loss)

    def gather(self) -> None:
        """Bring the weights back into the model that training started from, in the first process."""
        if self.ranks.size > 1:
            gather_weights(self.trainer.model, self.loaded.model if self.ranks.is_first else None)

    def update_reference(self) -> None:
        """Let the reference be the model as it is now."""
        copy_weights(self.reference, trainable_parameters(self.trainer.model))

    def save(self, path: Path) -> None:
        """Write a checkpoint into `path`: everything that changes in training."""
        save_checkpoint(path, self.loaded, self.trainer, self.moving_reference)

    def restore(self, path: Path) -> None:
        """Put back what a checkpoint has, whoever has written it.

        Raises:
            RunError: it is no checkpoint, or another model's.
        """
        restore_checkpoint(path, self.loaded, self.trainer, self.moving_reference)

    def _batches(self, samples: Sequence[TrainingSequence]) -> list[Batch]:
        model = self.trainer.model
        device = torch.device(self.ranks.device) if self.ranks.size > 1 else model.device
        return micro_batches(samples, self.config.micro_batch_tokens, device, can_pack(model), self.ranks)


def resume(team: Team, run: Run) -> int:
    """Put everything back to where the run's last intact checkpoint was; how many steps that is, 0 where there is none.

    Raises:
        RunError: see `recover` and `Learner.restore`.
    """
    for line in recover(run):
        logger.warning(line)
    last = run.last_checkpoint()
    if last is not None:
        team.do("restore", last[0])
    run.cut(last[1] if last else None)
    return last[1].step if last else 0
