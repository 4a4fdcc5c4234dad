"""The steps of an RL run one after another: play, train, publish the weights; with the next one played meanwhile if allowed."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rove.digest import derive_seed
from rove.engine.client import EngineClient
from rove.envs.environment import Environment
from rove.models.load import LoadedModel, copy_weights, switch_off, trained, twin
from rove.runs import Run
from rove.statistics import mean
from rove.train.bad_steps import try_step
from rove.train.batch import can_pack, micro_batches, trained_tokens
from rove.train.lora import dropping
from rove.train.playing import DRAWN, Played, Player
from rove.train.samples import Sample
from rove.train.token_stats import TokenStats
from rove.train.trainer import Trainer, frozen_logprobs, lr_scale
from rove.trained_tokens import write_tokens

if TYPE_CHECKING:
    from rove.train.rl import RLConfig

AGREEMENT = ("mismatch_kl/all/mean", "logprob_diff/max")
"""Measures of how far sampler and trainer are apart."""


class Pipeline:
    """Plays and trains steps.

    With `max_off_policy_steps` = 0 model and sampler share their weights. With 1 the sampler has a copy, and plays a step on
    the event loop while the one before is trained in a thread; with `bf16_sampling` a copy, too. With a `kl_penalty` there is
    another copy, the reference: of the weights that training starts from, or of those after the last `sync_reference_every`
    steps. Of a model with an adapter, copies have only the adapter to themselves (but the one in bf16), and only its weights
    travel; the model at the start is the one with the adapter off.

    Args:
        config: settings.
        env: where to play.
        loaded: the model as training starts from it, not yet resumed.
        trainer: of that model.
        run: the run folder.
    """

    def __init__(self, config: RLConfig, env: Environment, loaded: LoadedModel, trainer: Trainer, run: Run):
        self.config = config
        self.env = env
        self.trainer = trainer
        self.run = run
        self.overlaps = config.max_off_policy_steps > 0
        self.copies = self.overlaps or config.bf16_sampling
        sampler = loaded
        if self.copies:
            copied = copy.deepcopy(loaded.model) if config.bf16_sampling else twin(loaded.model)
            sampler = loaded._replace(model=copied)
        if config.bf16_sampling:
            for parameter in sampler.model.parameters():  # and no buffer: positions' angles need their digits
                parameter.data = parameter.data.bfloat16()
        self.reference = twin(loaded.model) if config.kl_penalty else None
        if self.reference is not None and self.moving_reference is None:
            switch_off(self.reference)
        self.client = EngineClient.of(sampler, max_batch=config.batch_size)
        self._player: Player | None = None
        self._ahead: asyncio.Task[Played] | None = None

    def start(self, step: int, history: Sequence[Mapping[str, float]]) -> None:
        """Begin, or go on, after so many steps, whose metrics are `history`.

        Raises:
            ConfigError: there is nothing to play (see `Player`).
        """
        drawn = int(history[-1].get(DRAWN, step * self.config.groups)) if history else 0
        self._player = Player(self.config, self.env, self.client, self.run, drawn)
        self._publish(step)

    async def step(self, step: int, history: Sequence[Mapping[str, float]]) -> tuple[Played, dict[str, float]]:
        """Play and train a step (counted from 0); what was played, and the metrics of both.

        Where nothing is played ahead, the sampler has the new weights afterwards.

        Raises:
            RunError: every rollout failed.
            TrainingError: too many steps in a row were not finite.
        """
        assert self._player is not None
        played = await (self._ahead or self._player.play(step))
        self._ahead = None
        arguments = (self.config, step, played.samples, self.trainer, self.reference, self.run, history)
        if self.overlaps:
            self._publish(step)
            if not pauses(self.config, step + 1):
                self._ahead = asyncio.create_task(self._player.play(step + 1))
            learnt = await asyncio.to_thread(learn, *arguments)
        else:
            learnt = learn(*arguments)
        if self._ahead is None:
            self._publish(step + 1)
        every = self.config.sync_reference_every
        if self.reference is not None and every is not None and (step + 1) % every == 0:
            copy_weights(self.reference, trained(self.trainer.model))
        return played, {**played.metrics, **learnt}

    @property
    def moving_reference(self) -> Any:
        """The reference model where its weights change, so that checkpoints must have them; else None."""
        return self.reference if self.config.sync_reference_every is not None else None

    async def close(self) -> None:
        """Give up what is played ahead."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)

    def _publish(self, version: int) -> None:
        """Let the sampler have the newest weights."""
        newest = trained(self.trainer.model) if self.copies else None
        self.client.engine.update_weights(version, newest)


def pauses(config: RLConfig, number: int) -> bool:
    """Whether nothing is played ahead while step `number` is trained, because something is saved or measured after it.

    A run that is resumed there begins with the newest weights, so one that was not stopped must do so too.
    """
    return (
        number % config.checkpoint_every == 0
        or number == config.steps
        or any(number % evaluation.every == 0 for evaluation in config.evaluation)
    )


def learn(
    config: RLConfig,
    step: int,
    samples: Sequence[Sample],
    trainer: Trainer,
    reference: Any,
    run: Run,
    history: Sequence[Mapping[str, float]],
) -> dict[str, float]:
    """Take the optimizer steps on a step's rollouts; returns what the last one measured, and how long all took.

    What tells whether sampler and trainer agree is of the first: from the second on they are meant to differ.

    Raises:
        TrainingError: too many steps in a row were not finite.
    """
    started = time.perf_counter()
    learnt: dict[str, float] = {}

    def train() -> dict[str, float]:
        model, loss = trainer.model, config.make_loss()
        batches = micro_batches(samples, config.micro_batch_tokens, model.device, can_pack(model))
        if reference is not None:
            batches = [batch._replace(reference=frozen_logprobs(reference, batch)) for batch in batches]
        if config.updates_per_batch > 1:
            batches = [batch._replace(old=frozen_logprobs(model, batch)) for batch in batches]
        stats = TokenStats(samples, config.token_stats, derive_seed(config.seed, "token_stats", step))
        with dropping(model, derive_seed(config.seed, "dropout", step)):
            measured = [
                trainer.step(
                    batches,
                    loss,
                    divisor=trained_tokens(samples),
                    entropy_bonus=config.entropy_bonus,
                    lr_scale=lr_scale(step, config.steps, config.warmup_steps, config.final_lr_fraction),
                    on_batch=stats.see if update == 0 and stats.chosen else None,
                )
                for update in range(config.updates_per_batch)
            ]
        if stats.chosen:
            write_tokens(run.path, step + 1, stats.rollouts())
        return measured[-1] | {name: measured[0][name] for name in AGREEMENT}

    if samples:
        ages = [step - sample.policy_version for sample in samples]
        learnt = {"off_policy/mean": mean(ages), "off_policy/max": float(max(ages))}
        learnt |= try_step(train, samples, run, history, config.max_bad_steps)
    return {**learnt, "time/training": time.perf_counter() - started}
