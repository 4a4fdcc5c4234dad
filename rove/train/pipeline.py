"""The steps of an RL run one after another: play, train, publish the weights; with the next one, or all that come, played
meanwhile if allowed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rove.envs.environment import Environment
from rove.models.load import LoadedModel
from rove.runs.run import Run
from rove.runs.token_stats import write_tokens
from rove.train.async_collect import Stream
from rove.train.backends import make_sampler
from rove.train.collect import DRAWN, Played, RolloutCollector
from rove.train.config import RLConfig
from rove.train.non_finite import step_unless_non_finite
from rove.train.progress import OnProgress, ignore
from rove.train.sequences import TrainingSequence
from rove.train.trainer import lr_scale
from rove.train.worker_group import Team


class Pipeline:
    """Plays and trains steps.

    With `max_off_policy_steps` = 0 model and embedded sampler share their weights. With 1 the sampler has a copy, and plays a
    step on the event loop while the one before is trained in a thread; with more it plays all the time, and takes new weights
    meanwhile (`rove.train.async_collect`). More of who plays: `rove.train.backends`.

    Args:
        config: settings.
        env: where to play.
        loaded: the model as training starts from it, not yet resumed.
        team: of the learners of that model.
        run: the run folder.
        on_progress: called after every rollout.
    """

    def __init__(
        self,
        config: RLConfig,
        env: Environment,
        loaded: LoadedModel,
        team: Team,
        run: Run,
        on_progress: OnProgress = ignore,
    ):
        self.on_progress = on_progress
        self.config = config
        self.env = env
        self.loaded = loaded
        self.team = team
        self.run = run
        self.overlaps = config.max_off_policy_steps > 0
        self.sampler = make_sampler(config, loaded, run.path, copies=self.overlaps)
        self.client = self.sampler.client
        self._player: RolloutCollector | None = None
        self._ahead: asyncio.Task[Played] | None = None
        self._stream: Stream | None = None

    def start(self, step: int, history: Sequence[Mapping[str, float]]) -> None:
        """Begin, or go on, after so many steps, whose metrics are `history`.

        Raises:
            ConfigError: there is nothing to play (see `Player`).
        """
        drawn = int(history[-1].get(DRAWN, step * self.config.groups)) if history else 0
        self._player = RolloutCollector(self.config, self.env, self.client, self.run, drawn, self.on_progress)
        self._publish(step)
        if self.config.max_off_policy_steps > 1:
            last = self.run.last_checkpoint()
            self._stream = Stream(self._player, step, last[1].state if last else {})

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold beside weights, for `start` to go on there."""
        return self._stream.state() if self._stream is not None else {}

    async def step(self, step: int, history: Sequence[Mapping[str, float]]) -> tuple[Played, dict[str, float]]:
        """Play and train a step (counted from 0); what was played, and the metrics of both.

        Where nothing is played ahead, the sampler has the new weights afterwards.

        Raises:
            RunError: every rollout failed, or a reward function raised in every rollout of the first step.
            TrainingError: too many steps in a row were not finite.
        """
        assert self._player is not None
        if self._stream is not None:
            played = await self._stream.take(step)
        else:
            played = await (self._ahead or self._player.play(step))
            self._ahead = None
        arguments = (self.config, step, played.samples, self.team, self.run, history)
        if self.overlaps:
            if self._stream is None:
                self._publish(step)
                if not pauses(self.config, step + 1):
                    self._ahead = asyncio.create_task(self._player.play(step + 1))
            learnt = await asyncio.to_thread(learn, *arguments)
        else:
            learnt = learn(*arguments)
        if self._stream is not None:
            await self.sampler.beside(partial(self._publish, step + 1))
            self._stream.trained(step + 1)
        elif self._ahead is None:
            self._publish(step + 1)
        every = self.config.loss.sync_reference_every
        if every is not None and (step + 1) % every == 0:
            self.team.do("update_reference")
        return played, {**played.metrics, **learnt, **self.sampler.metrics}

    async def close(self) -> None:
        """Give up what is played ahead, and end the sampler."""
        if self._stream is not None:
            await self._stream.close()
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
        await self.sampler.close()

    def _publish(self, version: int) -> None:
        """Let the sampler have the newest weights."""
        self.team.do("gather")
        self.sampler.publish(version)


def pauses(config: RLConfig, number: int) -> bool:
    """Whether nothing is played ahead while step `number` is trained, because something is saved or measured after it.

    A run that is resumed there begins with the newest weights, so one that was not stopped must do so too.
    """
    return (
        number % config.checkpoint_every == 0
        or number == config.steps
        or any(number % evaluation.every == 0 for evaluation in config.evaluation)
    )


def ages(samples: Sequence[TrainingSequence], step: int) -> dict[str, float]:
    """How many versions the weights that are trained are ahead of those that sampled: mean over tokens, and of the oldest."""
    counts = [(step - version, count) for sample in samples for version, count in sample.versions]
    total = sum(age * count for age, count in counts)
    return {
        "off_policy/mean": total / max(1, sum(count for _, count in counts)),
        "off_policy/max": float(max(age for age, _ in counts)),
    }


def learn(
    config: RLConfig,
    step: int,
    samples: Sequence[TrainingSequence],
    team: Team,
    run: Run,
    history: Sequence[Mapping[str, float]],
) -> dict[str, float]:
    """Take the optimizer steps on a step's rollouts; returns what the last one measured, and how long all took.

    Raises:
        TrainingError: too many steps in a row were not finite.
    """
    started = time.perf_counter()
    learnt: dict[str, float] = {}

    def train() -> dict[str, float]:
        scale = lr_scale(step, config.steps, config.warmup_steps, config.final_lr_fraction)
        measured = team.do("update", step, samples, scale)
        if known := team.worker.token_stats:
            write_tokens(run.path, step + 1, known)
        return measured

    if samples:
        learnt = ages(samples, step)
        learnt |= step_unless_non_finite(train, samples, run, history, config.max_non_finite_steps)
    return {**learnt, "time/training": time.perf_counter() - started}
