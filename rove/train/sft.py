"""Supervised fine-tuning on filtered rollouts, to the minimum of the validation loss."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import torch

from rove.config import check_positive
from rove.digest import derive_seed
from rove.errors import ConfigError
from rove.models.linear import use_fast_linear
from rove.models.load import LoadedModel, default_threads
from rove.records import RolloutRecord
from rove.renderer import Renderer
from rove.runs import Run
from rove.train.bad_steps import try_step
from rove.train.batch import Batch, can_pack, micro_batches, trained_tokens
from rove.train.checkpoint import restore_checkpoint, restore_weights, save_checkpoint
from rove.train.losses import cross_entropy
from rove.train.samples import Sample, samples_from_messages
from rove.train.trainer import Trainer, lr_scale


class SFTConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an SFT run."""

    data: str
    """Run folder whose rollouts are learnt from."""
    model: str
    """Model folder to start from."""
    min_reward: float | None = None
    """Rollouts below this reward are left out."""
    max_examples: int = -1
    """At most so many rollouts; -1 = all."""
    epochs: int = 10
    """Most passes over the data; training stops earlier when the validation loss has stopped falling."""
    batch_size: int = 32
    """Conversations per optimizer step."""
    learning_rate: float = 1e-3
    warmup_steps: int = 20
    final_lr_fraction: float = 0.05
    """The learning rate falls linearly to this share of its peak at the last step of the last epoch."""
    validation_fraction: float = 0.05
    """Share of the conversations held out, at least one."""
    validate_every: int = 50
    """Steps between measurements of the validation loss, each with a checkpoint."""
    patience: int = 4
    """Stop after so many measurements without a new minimum."""
    micro_batch_tokens: int = 8192
    bf16_backward: bool = False
    """Matrix products of the backward pass in bf16 on a CPU; everything else stays fp32.

    Ignored where the CPU has no bf16 products; where it has, a step takes about a fifth less time.
    """
    threads: int | None = None
    """CPU threads; half the cores when not given."""
    max_grad_norm: float = 1.0
    max_bad_steps: int = 3
    """A step whose loss or gradient is not finite is skipped; so many in a row stop training."""
    weight_decay: float = 0.0
    seed: int = 0

    def check(self) -> None:
        """Refuse impossible settings before any work is done.

        Raises:
            ConfigError: a setting is out of range.
        """
        check_positive(
            self,
            "epochs",
            "batch_size",
            "learning_rate",
            "validate_every",
            "patience",
            "micro_batch_tokens",
            "max_bad_steps",
            "threads",
        )
        if not 0 < self.validation_fraction < 1:
            raise ConfigError(f"validation_fraction is {self.validation_fraction}; expected a share between 0 and 1")


OnStep = Callable[[int, int, Mapping[str, float]], None]


def conversations(records: Iterable[RolloutRecord], config: SFTConfig) -> list[list[dict[str, object]]]:
    """The messages of the rollouts that pass the filter.

    Raises:
        ConfigError: fewer than two are left.
    """
    seen = 0
    kept: list[list[dict[str, object]]] = []
    for record in records:
        seen += 1
        if record.scores is None or (config.min_reward is not None and record.scores.reward < config.min_reward):
            continue
        if not record.completion:  # the model never said anything: its prompt was too long
            continue
        if 0 <= config.max_examples <= len(kept):
            break
        kept.append([*record.prompt, *record.completion])
    if len(kept) < 2:
        raise ConfigError(
            f"{len(kept)} of {seen} rollouts in {config.data} pass min_reward = {config.min_reward}; SFT needs at least 2"
        )
    return kept


def split(
    renderer: Renderer, talks: Sequence[list[dict[str, object]]], config: SFTConfig
) -> tuple[list[list[Sample]], list[Sample]]:
    """Training conversations (each a list of samples) and validation samples, whole conversations apart."""
    order = list(range(len(talks)))
    random.Random(config.seed).shuffle(order)
    held_out = min(max(1, round(len(talks) * config.validation_fraction)), len(talks) - 1)
    samples = [samples_from_messages(renderer, talks[i]) for i in order]
    return samples[held_out:], [sample for talk in samples[:held_out] for sample in talk]


def train_sft(
    config: SFTConfig, records: Iterable[RolloutRecord], loaded: LoadedModel, run: Run, on_step: OnStep | None = None
) -> Path:
    """Fine-tune `loaded` on the rollouts that pass the filter; the weights kept are those of the lowest validation loss.

    Args:
        config: settings.
        records: rollouts to learn from.
        loaded: the model to train, in place.
        run: a started run folder; training goes on at its last checkpoint if it has one.
        on_step: called after every step with its number, the most there can be, and its metrics.

    Returns:
        the folder of the final model.
    """
    config.check()
    torch.set_num_threads(config.threads or default_threads())
    use_fast_linear(loaded.model, config.bf16_backward)
    device = loaded.model.device
    training, held_out = split(loaded.renderer, conversations(records, config), config)
    validation = micro_batches(held_out, config.micro_batch_tokens, device, can_pack(loaded.model))
    trainer = Trainer(loaded.model, config.learning_rate, config.max_grad_norm, config.weight_decay)
    step, best, best_step = 0, float("inf"), 0
    last = run.last_checkpoint()
    if last is not None:
        restore_checkpoint(last[0], loaded, trainer)
        step, best, best_step = last[1].step, last[1].state["best"], last[1].state["best_step"]
    run.cut(last[1] if last else None)
    history = run.metrics()
    per_epoch = max(1, len(training) // config.batch_size)
    total = per_epoch * config.epochs
    while step < total and not _stopped(step, best_step, config):
        metrics = _one_step(config, step, total, training, trainer, run, history)
        step += 1
        measured = step % config.validate_every == 0 or step == total
        if measured:
            metrics["validation_loss"] = trainer.mean_loss(validation, cross_entropy)
            if metrics["validation_loss"] < best:
                best, best_step = metrics["validation_loss"], step
                run.save_checkpoint("best", loaded.save)
        history.append({"step": step, **metrics})
        run.append_metrics(history[-1])
        if measured:
            state = {"best": best, "best_step": best_step}
            run.save_checkpoint(
                str(step), lambda path: save_checkpoint(path, loaded, trainer), run.progress(step, state)
            )
            run.prune_checkpoints(1)
        if on_step is not None:
            on_step(step, total, metrics)
    restore_weights(run.path / "checkpoints" / "best", loaded)
    final = run.save_final(loaded.save)
    counts = {"conversations": len(training), "held_out_samples": len(held_out), "steps": step}
    run.finish({**counts, "best_step": best_step, "validation_loss": best})
    return final


def _stopped(step: int, best_step: int, config: SFTConfig) -> bool:
    return step - best_step >= config.patience * config.validate_every


def _one_step(
    config: SFTConfig,
    step: int,
    total: int,
    training: Sequence[Sequence[Sample]],
    trainer: Trainer,
    run: Run,
    history: Sequence[Mapping[str, float]],
) -> dict[str, float]:
    started = time.perf_counter()
    samples = [sample for talk in _batch(config, step, training) for sample in talk]
    batches: list[Batch] = micro_batches(
        samples, config.micro_batch_tokens, trainer.model.device, can_pack(trainer.model)
    )
    scale = lr_scale(step, total, config.warmup_steps, config.final_lr_fraction)
    seen = try_step(
        lambda: trainer.step(batches, cross_entropy, divisor=trained_tokens(samples), lr_scale=scale),
        samples,
        run,
        history,
        config.max_bad_steps,
    )
    keep = ("loss", "entropy/all/mean", "optim/grad_norm", "optim/lr", "optim/skipped", "tokens")
    return {**{name: seen[name] for name in keep if name in seen}, "time/step": time.perf_counter() - started}


def _batch(config: SFTConfig, step: int, training: Sequence[Sequence[Sample]]) -> list[Sequence[Sample]]:
    """The conversations of a step: each epoch in an order of its own, a function of seed and epoch alone."""
    per_epoch = max(1, len(training) // config.batch_size)
    epoch, position = divmod(step, per_epoch)
    order = list(range(len(training)))
    random.Random(derive_seed(config.seed, "epoch", epoch)).shuffle(order)
    return [training[i] for i in order[position * config.batch_size : (position + 1) * config.batch_size]]
