"""One step's rollouts: draw examples, play groups of siblings, turn rewards into advantages."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, RunError
from rove.core.protocols import Client, SamplingParams
from rove.core.records import REWARD_ERRORS, RolloutRecord
from rove.envs.environment import Environment
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import Job, plan
from rove.runs.run import Run
from rove.statistics import mean
from rove.statistics.reward_errors import RewardErrors, broken_reward
from rove.train.advantages import batch_advantages
from rove.train.config import RLConfig
from rove.train.curriculum import Difficulty, Draw, Order
from rove.train.losses import token_weights
from rove.train.progress import OnProgress, ignore
from rove.train.sequences import TrainingSequence, sequences_from_record

DRAWN = "examples/drawn"
"""Examples that the run has drawn so far, those skipped included: where the next step goes on."""


class Played(NamedTuple):
    """What came of playing a step."""

    records: list[RolloutRecord]
    samples: list[TrainingSequence]
    metrics: dict[str, float]


class RolloutCollector:
    """Plays the steps of an RL run, and keeps every rollout in its folder.

    Args:
        config: settings.
        env: where to play.
        client: who plays.
        run: the run folder; what it has of earlier steps says which examples are too hard or too easy.
        drawn: how many examples those have drawn.
        on_progress: called after every rollout.

    Raises:
        ConfigError: the dataset has no rows, or not the column that is asked for.
    """

    def __init__(
        self,
        config: RLConfig,
        env: Environment,
        client: Client,
        run: Run,
        drawn: int = 0,
        on_progress: OnProgress = ignore,
    ):
        self.on_progress = on_progress
        self.config = config
        self.env = env
        self.client = client
        self.run = run
        self.drawn = drawn
        self.examples = _examples(config, env)
        self.order = Order(self.examples, config.curriculum, config.seed, config.steps, config.groups)
        self.difficulty = Difficulty(
            config.filter.hard_threshold, config.filter.easy_threshold, config.filter.difficulty_window
        )
        if self.difficulty.is_on:
            self.difficulty.add(run.outcomes())

    async def play(self, step: int) -> Played:
        """The groups of the next step (counted from 0), and further ones in place of those without spread as far as is asked for.

        Raises:
            RunError: every rollout failed, or a reward function raised in every rollout of the first step.
        """
        config, started = self.config, time.perf_counter()
        draw = Draw(self.order, self.difficulty, step, self.drawn)
        chosen: list[int] = []
        records: list[RolloutRecord] = []
        wanted, rounds = config.groups, -1
        while True:
            before = len(chosen)
            chosen += draw.take(wanted)
            records += await self._run(step, plan_groups(config, step, [self.examples[i] for i in chosen])[before:])
            rounds += 1
            check_failures(records, step + 1)
            rollouts, counts = training_samples(records, config.truncated, config.advantage_estimator, config.gamma)
            wanted = config.groups - int(counts["groups/all"] - counts["groups/zero_spread"] - counts["groups/too_few"])
            if wanted <= 0 or rounds == config.filter.dynamic_sampling_rounds:
                break
        check_rewards(records, step + 1)
        self.difficulty.add(records)
        self.drawn = draw.position
        samples = _weighed(config, rollouts)
        times = {"time/sampling": time.perf_counter() - started}
        drawn = {
            "groups/resampled": float(len(chosen) - config.groups),
            "groups/rounds": float(rounds),
            "examples/skipped": float(draw.skipped),
            DRAWN: float(draw.position),
        }
        return Played(records, samples, {**rollout_metrics(records), **counts, **drawn, **times})

    async def _run(self, step: int, groups: Sequence[Sequence[Job]]) -> list[RolloutRecord]:
        config = self.config
        sampling = SamplingParams(temperature=config.temperature, max_tokens=config.max_tokens)
        rollouts = run_groups(
            self.env,
            self.client,
            groups,
            sampling=sampling,
            max_concurrent=config.batch_size,
            step=step + 1,
            for_training=True,
        )
        total = sum(map(len, groups))
        records: list[RolloutRecord] = []
        self.on_progress("rollouts", 0, total)
        async for record in rollouts:
            records.append(record)
            self.on_progress("rollouts", len(records), total)
        for record in records:
            self.run.append_rollout(record)
        return records


def rows_needed(config: RLConfig, env: Environment) -> int:
    """How many training rows a run may play: as many as its steps take in the dataset's order; for any other order all of
    them (-1), where their number is known."""
    most = config.steps * config.groups * (1 + config.filter.dynamic_sampling_rounds)
    order = config.curriculum
    picks = order.shuffle or order.stratify or order.column or config.filter.skips_examples
    if picks and env.count_examples(-1, train=True) is not None:
        most = -1
    return most


def _examples(config: RLConfig, env: Environment) -> list[dict[str, Any]]:
    examples = env.get_dataset(rows_needed(config, env))
    if not examples:
        raise ConfigError(f"the dataset of environment '{env.env_id}' has no rows; there is nothing to train on")
    return examples


def check_failures(records: Sequence[RolloutRecord], number: int) -> None:
    """Refuse to train on nothing but failures in step `number`.

    Raises:
        RunError: every rollout failed.
    """
    error = records[0].error
    if error is not None and all(record.scores is None for record in records):
        raise RunError(
            f"every rollout of step {number} failed; the first: {error.phase}: {error.message}\n{error.traceback}"
        )


def check_rewards(records: Sequence[RolloutRecord], number: int) -> None:
    """Refuse to train on a reward function that raises in every rollout, which counts as 0.0.

    Only step 1 is checked: a function that works at first and raises later does not stop a run.

    Raises:
        RunError: step `number` is the first, and a reward function raised in every rollout that was scored.
    """
    if number != 1:
        return
    errors = RewardErrors()
    for record in records:
        errors.add(record)
    scores = [record.scores for record in records if record.scores is not None]
    for name, error in errors.broken.items():
        if all(name in one.rewards and name in one.extras.get(REWARD_ERRORS, ()) for one in scores):
            raise RunError(
                f"step {number} has no usable rewards; {broken_reward(name, error)}. "
                "Fix the function, or let it return 0.0 for responses that it cannot score"
            )


def plan_groups(config: RLConfig, step: int, chosen: Sequence[dict[str, Any]]) -> list[list[Job]]:
    """The groups of these examples in a step, with seeds of the step's own; more examples leave those before as they are."""
    return list(plan(chosen, config.rollouts_per_example, derive_seed(config.seed, step)))


def turn_rewards(group: Sequence[RolloutRecord], truncated: str = "keep") -> list[list[float]]:
    """What each of these scored siblings is trained by: its reward; with rewards of turns anywhere in the group, one per turn.

    A turn that was given none earned 0 by itself, and the rollout's own reward is earned in the last turn. With "zero" a
    truncated rollout earned nothing in any turn.
    """
    factors = [0.0 if truncated == "zero" and record.is_truncated else 1.0 for record in group]
    if all(step.reward is None for record in group for step in record.steps):
        return [[factor * (record.reward or 0.0)] for record, factor in zip(group, factors, strict=True)]
    earned: list[list[float]] = []
    for record, factor in zip(group, factors, strict=True):
        turns = [step.reward or 0.0 for step in record.steps]
        if turns:
            turns[-1] += record.reward or 0.0
        earned.append([factor * reward for reward in turns])
    return earned


def training_samples(
    records: Sequence[RolloutRecord], truncated: str = "keep", estimator: str = "mean", gamma: float = 1.0
) -> tuple[list[list[TrainingSequence]], dict[str, float]]:
    """The samples of each rollout of a step, in the order of examples and siblings, and counts of what was left out.

    Failed rollouts (and, with "mask", truncated ones) are left out of their group; a group without spread is skipped.
    """
    groups: dict[str, list[RolloutRecord]] = {}
    for record in sorted(records, key=lambda r: (r.example_id, r.example_key, r.rollout_index)):
        groups.setdefault(record.example_key, []).append(record)
    scored = [
        [r for r in group if r.scores is not None and not (truncated == "mask" and r.is_truncated)]
        for group in groups.values()
    ]
    kept = [group for group in scored if len(group) >= 2]
    advantages = batch_advantages([turn_rewards(group, truncated) for group in kept], estimator, gamma)
    rollouts = [
        sequences_from_record(record, of_turns)
        for group, found in zip(kept, advantages, strict=True)
        if found is not None
        for record, of_turns in zip(group, found, strict=True)
    ]
    counts = {
        "groups/all": float(len(groups)),
        "groups/zero_spread": float(advantages.count(None)),
        "groups/too_few": float(len(groups) - len(kept)),
        "rollouts/failed": float(sum(r.scores is None for r in records)),
        "rollouts/truncated": float(sum(r.is_truncated for r in records)),
    }
    return rollouts, counts


def weighed(
    rollouts: Sequence[Sequence[TrainingSequence]], normalisation: str, constant: float
) -> list[TrainingSequence]:
    """The samples of all rollouts of a step, with their weights relative to a mean over the step's tokens."""
    samples = [sample for rollout in rollouts for sample in rollout]
    numbers = [number for number, rollout in enumerate(rollouts) for _ in rollout]
    counts = [sum(sample.mask) for sample in samples]
    weights = token_weights(normalisation, counts, numbers, constant)
    return [
        msgspec.structs.replace(sample, weight=weight * sum(counts))
        for sample, weight in zip(samples, weights, strict=True)
    ]


def _weighed(config: RLConfig, rollouts: Sequence[Sequence[TrainingSequence]]) -> list[TrainingSequence]:
    return weighed(rollouts, config.aggregation, config.loss.constant or config.max_tokens)


def made_of(config: RLConfig, records: Sequence[RolloutRecord]) -> tuple[list[TrainingSequence], dict[str, float]]:
    """What a step trains on, made of all its rollouts, and what there is to measure of them."""
    rollouts, counts = training_samples(records, config.truncated, config.advantage_estimator, config.gamma)
    return _weighed(config, rollouts), {**rollout_metrics(records), **counts}


def rollout_metrics(records: Sequence[RolloutRecord]) -> dict[str, float]:
    """Mean rewards, sums of turns' rewards and metrics of the rollouts that were scored (each of those that have it), and mean
    length of all, in tokens."""
    scores = [record.scores for record in records if record.scores is not None]
    metrics = {"reward/mean": mean([s.reward for s in scores])}
    for kind, told in (("reward", [s.rewards for s in scores]), ("metrics", [s.metrics for s in scores])):
        for name in dict.fromkeys(name for values in told for name in values):  # in an EnvGroup not all have the same
            metrics[f"{kind}/{name}"] = mean([values[name] for values in told if name in values])
    turns = [[step.reward for step in r.steps if step.reward is not None] for r in records if r.scores is not None]
    if any(turns):
        metrics["turn_reward/mean"] = mean([math.fsum(rewards) for rewards in turns])
    metrics["length/mean"] = mean([float(record.usage.completion_tokens) for record in records])
    return metrics
