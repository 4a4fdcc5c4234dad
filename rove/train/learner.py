"""The learner: trainer, reference model and checkpoints, in one process or sharded over several processes.

With several processes, each has a learner, and all receive the same calls (`rove.train.worker_group`):
docs/decisions/ranks.md explains why only the first process runs the loop.
"""

# Many functions of torch have no types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import logging
import random
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from rove.core.digest import derive_seed
from rove.models.load import LoadedModel, clone_model, copy_weights, disable_adapters, trainable_parameters
from rove.models.pretrained import model_path
from rove.runs.run import Run
from rove.runs.token_stats import TrainedRollout, TrainedTurn
from rove.train.batch import Batch, can_pack, count_trained_tokens, micro_batches
from rove.train.callbacks import OnProgress, counted, ignore
from rove.train.checkpoint import recover, restore_checkpoint, restore_weights, save_checkpoint
from rove.train.config import TrainingConfig
from rove.train.evaluation import keep_best
from rove.train.losses import Loss
from rove.train.sequences import TrainingSequence
from rove.train.sharding import gather_weights, scatter_weights
from rove.train.trainer import TrainingError, frozen_logprobs, make_trainer, shard_copy
from rove.train.worker_group import SINGLE_PROCESS, Ranks, WorkerGroup


def add_lora(config: TrainingConfig, loaded: LoadedModel) -> LoadedModel:
    """Return the model, with a new adapter if the settings enable LoRA; then only the adapter is trained and saved."""
    if not config.lora.rank:
        return loaded
    from rove.models.adapter import add_adapter

    # An absolute path: the adapter is found again from any working directory.
    folder = Path(model_path(config.model)).expanduser()
    adapter = add_adapter(
        loaded.model,
        config.lora.rank,
        config.lora.alpha,
        config.lora.dropout,
        config.lora.targets,
        derive_seed(config.seed, "adapter"),
        base=str(folder.resolve()) if folder.is_dir() else config.model,
    )
    return loaded._replace(adapter=adapter)


def describe_lora(config: TrainingConfig, loaded: LoadedModel) -> str:
    """Return a text about the share of the model that the adapter will cover; "" if the settings do not enable LoRA."""
    if not config.lora.rank:
        return ""
    from rove.models.adapter import describe_coverage

    return describe_coverage(loaded.model, config.lora.targets)


@contextmanager
def adapter_dropout(model: torch.nn.Module, seed: int) -> Generator[None]:
    """Return a context in which the adapter's dropout is active, with its own random stream."""
    modules = cast(Iterable[tuple[str, torch.nn.Module]], model.named_modules())
    layers = [layer for name, layer in modules if ".lora_dropout." in name]
    if not any(isinstance(layer, torch.nn.Dropout) for layer in layers):
        yield
        return
    # Without this, the masks would depend on the random numbers that other code has drawn, and a resumed run would differ.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for layer in layers:
            layer.train()
        try:
            yield
        finally:
            for layer in layers:
                layer.eval()


DECIMALS = 6
"""Number of decimals of recorded log-probabilities; ratios of probabilities are then exact to about 1e-6."""


class TokenStats:
    """Records log-probabilities and entropies of the trained tokens of some rollouts during a step."""

    def __init__(self, samples: Sequence[TrainingSequence], count: int, seed: int):
        origins = [sequence.origin for sequence in samples if sequence.origin is not None]
        # Sorted, so that the choice depends on the seed only.
        rollouts = sorted({(origin.example_key, origin.rollout_index) for origin in origins})
        self.chosen = set(random.Random(seed).sample(rollouts, min(count, len(rollouts))))
        """Example key and rollout index of each chosen rollout."""
        self.records: list[tuple[TrainingSequence, torch.Tensor, torch.Tensor]] = []

    def add(self, batch: Batch, logprobs: torch.Tensor, entropies: torch.Tensor) -> None:
        """Record the chosen rollouts' sequences in a batch; log-probabilities and entropies have the shape [M]."""
        for index, sequence in enumerate(batch.sequences):
            origin = sequence.origin
            if origin is not None and (origin.example_key, origin.rollout_index) in self.chosen:
                mine = batch.sequence_index == index  # batches keep the token order of a sequence
                self.records.append((sequence, logprobs[mine], entropies[mine]))

    def rollouts(self) -> list[TrainedRollout]:
        """Return the records by rollout."""
        turns_of: dict[tuple[str, int], list[TrainedTurn]] = {rollout: [] for rollout in sorted(self.chosen)}
        for sequence, logprobs, entropies in self.records:
            origin = sequence.origin
            assert origin is not None
            turns_of[origin.example_key, origin.rollout_index] += _trained_turns(sequence, logprobs, entropies)
        return [
            TrainedRollout(key, index, sorted(turns, key=lambda turn: turn.turn))
            for (key, index), turns in turns_of.items()
        ]


def _trained_turns(sequence: TrainingSequence, logprobs: torch.Tensor, entropies: torch.Tensor) -> list[TrainedTurn]:
    """Return the turns of a sequence; [] if its first token is sampled, because no token predicts the first one."""
    assert sequence.origin is not None
    if sequence.mask[0]:
        return []
    advantages = [value for value, trained in zip(sequence.advantages, sequence.mask, strict=True) if trained]
    logprob_values, entropy_values = _rounded(logprobs), _rounded(entropies)
    turns: list[TrainedTurn] = []
    start = 0
    for number, count in sequence.origin.turns:
        end = start + count
        if count:
            turns.append(TrainedTurn(number, logprob_values[start:end], entropy_values[start:end], advantages[start]))
        start = end
    return turns


def _rounded(values: torch.Tensor) -> list[float]:
    numbers = cast("list[float]", values.tolist())
    # Adding 0.0 turns −0.0 into 0.0.
    return [round(number, DECIMALS) + 0.0 for number in numbers]


logger = logging.getLogger(__name__)

MISMATCH_METRICS = ("mismatch_kl/all/mean", "logprob_diff/max")
"""Metrics of the difference between sampler and trainer."""


class Objective(NamedTuple):
    """The training objective."""

    loss: Loss
    num_iterations: int = 1
    """Number of optimizer steps on the same sequences."""
    log_token_stats: int = 0
    """Number of rollouts per step whose token statistics are recorded; see `TokenStats`."""
    reference: str | None = None
    """Reference model of the loss: "first" (the model before training), "moving" (updated in training), or None."""


class Learner:
    """A model in training.

    Args:
        loaded: The model before training (not resumed). A single process trains it in place. Several processes train shards of a
            copy, and `gather` copies the weights back in the first process.
    """

    def __init__(
        self,
        config: TrainingConfig,
        objective: Objective,
        loaded: LoadedModel,
        ranks: Ranks = SINGLE_PROCESS,
        on_progress: OnProgress = ignore,
    ):
        self.config = config
        self.objective = objective
        self.loaded = loaded
        self.ranks = ranks
        self.on_progress = on_progress
        # Before the copy: it sets the precision of the layers, and the reference must compute in the same precision.
        self.trainer = make_trainer(config, loaded, ranks, on_progress)
        self.reference: Any = None
        if objective.reference is not None:
            whole = clone_model(loaded.model)
            if objective.reference == "first":
                # The model before training has no adapter; its base weights are shared and not copied.
                disable_adapters(whole)
            self.reference = shard_copy(whole, ranks, config.mixed_precision)
        self.token_stats: list[TrainedRollout] = []
        """Records of the last update."""

    @property
    def moving_reference(self) -> Any:
        """The reference model if its weights change, so that checkpoints must contain it; else None."""
        return self.reference if self.objective.reference == "moving" else None

    def update(
        self, step: int, samples: Sequence[TrainingSequence], lr_scale: float, entropy_bonus: float = 0.0
    ) -> dict[str, float]:
        """Take the optimizer steps of one training step; return the metrics of the last optimizer step.

        Only the mismatch metrics come from the first optimizer step: from the second step on, the trained policy is meant to
        differ from the sampler.
        """
        model, objective = self.trainer.model, self.objective
        batches = self._batches(samples)
        if self.reference is not None:
            with self.trainer.training_precision(self.reference):
                batches = [
                    batch._replace(reference=frozen_logprobs(self.reference, batch))
                    for batch in counted(batches, "reference micro-batches", self.on_progress)
                ]
        if objective.num_iterations > 1:
            with self.trainer.training_precision(model):
                batches = [batch._replace(old=frozen_logprobs(model, batch)) for batch in batches]
        stats = TokenStats(samples, objective.log_token_stats, derive_seed(self.config.seed, "token_stats", step))
        divisor = max(1, count_trained_tokens(samples))
        measured: list[dict[str, float]] = []
        with adapter_dropout(model, derive_seed(self.config.seed, "dropout", step)):
            for iteration in range(objective.num_iterations):
                on_batch = stats.add if stats.chosen and iteration == 0 else None
                try:
                    metrics = self.trainer.step(batches, objective.loss, divisor, entropy_bonus, lr_scale, on_batch)
                except TrainingError:
                    if not measured:
                        raise
                    break  # earlier iterations have changed the weights, so the step is not skipped
                measured.append(metrics)
        # Each process has measured the sequences of its own batches.
        stats.records = self.ranks.all_gather(stats.records)
        self.token_stats = stats.rollouts()
        return measured[-1] | {name: measured[0][name] for name in MISMATCH_METRICS}

    def mean_loss(self, samples: Sequence[TrainingSequence]) -> float:
        """Return the mean loss per trained token, without training (validation)."""
        return self.trainer.mean_loss(self._batches(samples), self.objective.loss)

    def gather(self) -> None:
        """Copy the weights back into the original model, in the first process."""
        if self.ranks.size > 1:
            gather_weights(self.trainer.model, self.loaded.model if self.ranks.is_first else None)

    def update_reference(self) -> None:
        """Copy the current weights to the reference model."""
        copy_weights(self.reference, trainable_parameters(self.trainer.model))

    def save(self, path: Path) -> None:
        """Write a checkpoint: everything that training changes."""
        save_checkpoint(path, self.loaded, self.trainer, self.moving_reference)

    def restore(self, path: Path) -> None:
        """Restore a checkpoint, written by any number of processes."""
        restore_checkpoint(path, self.loaded, self.trainer, self.moving_reference)

    def return_to(self, path: Path) -> None:
        """Continue from the weights in a folder, with the optimizer's moments at zero. A moving reference gets the
        weights, too.
        """
        restore_weights(path, self.loaded)
        if self.ranks.size > 1:
            scatter_weights(trainable_parameters(self.loaded.model), self.trainer.model)
        # The moments belong to the gradients that led to the fall.
        self.trainer.reset_optimizer()
        if self.moving_reference is not None:
            self.update_reference()

    def _batches(self, samples: Sequence[TrainingSequence]) -> list[Batch]:
        model = self.trainer.model
        device = torch.device(self.ranks.device) if self.ranks.size > 1 else next(model.parameters()).device
        return micro_batches(samples, self.config.micro_batch_tokens, device, can_pack(model), self.ranks)


def resume(group: WorkerGroup[Learner], run: Run) -> int:
    """Restore the last intact checkpoint of the run; return its step, or 0 if there is no checkpoint."""
    for line in recover(run):
        logger.warning(line)
    last = run.last_checkpoint()
    if last is not None:
        group.call_all(Learner.restore, last[0])
    # What was written after the checkpoint will be written again.
    run.cut(last[1] if last else None)
    if last is None:
        return 0
    # The run may have been killed after this checkpoint, before its weights were saved as the best.
    group.call_all(Learner.gather)
    learner = group.worker
    keep_best(run, learner.loaded, run.metrics(), learner.config.goal)
    return last[1].step
