"""Collect the rollouts of a training step: choose examples, run groups, compute advantages and training sequences."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, RunError
from rove.core.plain import JsonObject
from rove.core.protocols import Client, SamplingParams
from rove.core.records import REWARD_ERRORS, RolloutRecord
from rove.envs.environment import Environment
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import Job, plan
from rove.runs.run import Run
from rove.statistics import mean
from rove.statistics.summary import RewardErrors, broken_reward
from rove.train.advantages import batch_advantages
from rove.train.callbacks import OnProgress, ignore
from rove.train.config import RLConfig
from rove.train.curriculum import Difficulty, ExampleOrder, StepExamples
from rove.train.losses import token_weights
from rove.train.sequences import TrainingSequence, sequences_from_record

DRAWN = "examples/drawn"
"""Metric: examples that the run has drawn so far, skipped ones included. The next step continues there."""


class CollectedStep(NamedTuple):
    """The rollouts of a step and what training needs of them."""

    records: list[RolloutRecord]
    sequences: list[TrainingSequence]
    metrics: dict[str, float]


class RolloutCollector:
    """Collects the rollouts of one step after another and stores them in the run folder.

    Args:
        run: Run folder; the difficulty of examples is read from its earlier rollouts.
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
        self.config = config
        self.env = env
        self.client = client
        self.run = run
        self.drawn = drawn
        self.on_progress = on_progress
        self.examples: list[JsonObject] = env.get_dataset(rows_needed(config, env))
        if not self.examples:
            raise ConfigError(f"the dataset of environment '{env.env_id}' has no rows; there is nothing to train on")
        self.order = ExampleOrder(self.examples, config.curriculum, config.seed, config.steps, config.groups)
        self.difficulty = Difficulty(config.filter)
        if config.filter.skips_examples:
            self.difficulty.add(run.outcomes())
        self._prefetched: asyncio.Task[CollectedStep] | None = None

    @property
    def is_prefetching(self) -> bool:
        """Whether the next step's rollouts are collected already."""
        return self._prefetched is not None

    def prefetch(self, step: int) -> None:
        """Collect a step's rollouts in the background, for the next `take`."""
        self._prefetched = asyncio.create_task(self.collect(step))

    async def take(self, step: int) -> CollectedStep:
        """Return the rollouts of a step (counted from 0), collecting them unless they are prefetched; see `collect`."""
        collected = await (self._prefetched or self.collect(step))
        self._prefetched = None
        return collected

    async def collect(self, step: int) -> CollectedStep:
        """Run the groups of a step, and with dynamic sampling further ones in place of zero-advantage groups."""
        config, started = self.config, time.perf_counter()
        chooser = StepExamples(self.order, self.difficulty, step, self.drawn)
        chosen: list[int] = []
        records: list[RolloutRecord] = []
        wanted, rounds = config.groups, -1
        while True:
            before = len(chosen)
            chosen += chooser.take(wanted)
            groups = plan_groups(config, step, [self.examples[i] for i in chosen])[before:]
            records += await self._run_groups(step, groups)
            rounds += 1
            check_failures(records, step + 1)
            rollouts, counts = training_sequences(records, config.truncated, config.advantage_estimator, config.gamma)
            wanted = config.groups - int(counts["groups/all"] - counts["groups/zero_spread"] - counts["groups/too_few"])
            if wanted <= 0 or rounds == config.filter.dynamic_sampling_rounds:
                break
        check_rewards(records, step + 1)
        self.difficulty.add(records)
        self.drawn = chooser.position
        sampling = {
            "groups/resampled": float(len(chosen) - config.groups),
            "groups/rounds": float(rounds),
            "examples/skipped": float(chooser.skipped),
            DRAWN: float(chooser.position),
            "time/sampling": time.perf_counter() - started,
        }
        return CollectedStep(records, weigh(rollouts, config), {**rollout_metrics(records), **counts, **sampling})

    async def _run_groups(self, step: int, groups: Sequence[Sequence[Job]]) -> list[RolloutRecord]:
        rollouts = run_groups(
            self.env,
            self.client,
            groups,
            sampling=self.sampling_params,
            max_concurrent=self.config.batch_size,
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

    @property
    def sampling_params(self) -> SamplingParams:
        """Sampling parameters of the training rollouts."""
        return SamplingParams(temperature=self.config.temperature, max_tokens=self.config.max_tokens)

    def state(self) -> JsonObject:
        """Return what a checkpoint needs in addition to the weights."""
        return {}

    async def close(self) -> None:
        """Cancel the rollouts in progress."""
        if self._prefetched is not None:
            self._prefetched.cancel()
            await asyncio.gather(self._prefetched, return_exceptions=True)


def rows_needed(config: RLConfig, env: Environment) -> int:
    """Return how many training rows a run may use.

    In the dataset's order they are as many as its steps take; in any other order all of them (-1), if their number is known.
    """
    order = config.curriculum
    chooses = order.shuffle or order.stratify or order.column or config.filter.skips_examples
    if chooses and env.count_examples(-1, train=True) is not None:
        return -1
    return config.steps * config.groups * (1 + config.filter.dynamic_sampling_rounds)


def check_failures(records: Sequence[RolloutRecord], number: int) -> None:
    """Raise a RunError if every rollout of step `number` failed."""
    error = records[0].error
    if error is not None and all(record.scores is None for record in records):
        raise RunError(
            f"every rollout of step {number} failed; the first: {error.phase}: {error.message}\n{error.traceback}"
        )


def check_rewards(records: Sequence[RolloutRecord], number: int) -> None:
    """Raise a RunError if a reward function raised in every scored rollout of step 1; such rewards count as 0.0.

    Later steps are not checked: a function that worked at first does not stop a run.
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


def plan_groups(config: RLConfig, step: int, chosen: Sequence[JsonObject]) -> list[list[Job]]:
    """Return the groups of these examples in a step, seeded by step; more examples do not change the groups before."""
    return list(plan(chosen, config.rollouts_per_example, derive_seed(config.seed, step)))


def turn_rewards(group: Sequence[RolloutRecord], truncated: str = "keep") -> list[list[float]]:
    """Return the rewards that each scored rollout of a group is trained on: one, or one per turn if any turn has a reward.

    A turn without a reward earned 0, and the rollout's own reward is earned in its last turn. With "zero" a truncated rollout
    earned nothing in any turn.
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


def training_sequences(
    records: Sequence[RolloutRecord], truncated: str = "keep", estimator: str = "mean", gamma: float = 1.0
) -> tuple[list[list[TrainingSequence]], dict[str, float]]:
    """Compute the advantages of a step's rollouts and cut each rollout into training sequences.

    Failed rollouts (with "mask" also truncated ones) are left out of their group, and zero-advantage groups are
    skipped.

    Returns:
        The sequences of each rollout, ordered by example and rollout index; and counts of groups and rollouts.
    """
    groups: dict[str, list[RolloutRecord]] = {}
    for record in sorted(records, key=lambda r: (r.example_id, r.example_key, r.rollout_index)):
        groups.setdefault(record.example_key, []).append(record)
    scored = [
        [r for r in group if r.scores is not None and not (truncated == "mask" and r.is_truncated)]
        for group in groups.values()
    ]
    usable = [group for group in scored if len(group) >= 2]
    rewards = [turn_rewards(group, truncated) for group in usable]
    advantages = batch_advantages(rewards, estimator, gamma)
    rollouts = [
        sequences_from_record(record, of_turns)
        for group, found in zip(usable, advantages, strict=True)
        if found is not None
        for record, of_turns in zip(group, found, strict=True)
    ]
    counts = {
        "groups/all": float(len(groups)),
        "groups/zero_spread": float(advantages.count(None)),
        "groups/too_few": float(len(groups) - len(usable)),
        "rollouts/failed": float(sum(r.scores is None for r in records)),
        "rollouts/truncated": float(sum(r.is_truncated for r in records)),
    }
    return rollouts, counts


def weigh(rollouts: Sequence[Sequence[TrainingSequence]], config: RLConfig) -> list[TrainingSequence]:
    """Return the sequences of a step with their weights in the loss, relative to a mean over the step's tokens."""
    sequences = [sequence for rollout in rollouts for sequence in rollout]
    numbers = [number for number, rollout in enumerate(rollouts) for _ in rollout]
    counts = [sum(sequence.mask) for sequence in sequences]
    weights = token_weights(config.aggregation, counts, numbers, config.loss.constant or config.max_tokens)
    return [
        msgspec.structs.replace(sequence, weight=weight * sum(counts))
        for sequence, weight in zip(sequences, weights, strict=True)
    ]


def rollout_metrics(records: Sequence[RolloutRecord]) -> dict[str, float]:
    """Return mean rewards and metrics of the scored rollouts, and the mean length of all, in tokens."""
    scores = [record.scores for record in records if record.scores is not None]
    metrics = {"reward/mean": mean([s.reward for s in scores])}
    for kind, values in (("reward", [s.rewards for s in scores]), ("metrics", [s.metrics for s in scores])):
        for name in dict.fromkeys(name for one in values for name in one):  # members of an EnvGroup have different ones
            metrics[f"{kind}/{name}"] = mean([one[name] for one in values if name in one])
    turns = [[step.reward for step in r.steps if step.reward is not None] for r in records if r.scores is not None]
    if any(turns):
        metrics["turn_reward/mean"] = mean([math.fsum(rewards) for rewards in turns])
    metrics["length/mean"] = mean([float(record.usage.completion_tokens) for record in records])
    return metrics
