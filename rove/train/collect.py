"""Collect the rollouts of a training step: choose examples, run groups, compute advantages and training sequences."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, RunError
from rove.core.plain import JsonObject
from rove.core.protocols import Client, SamplingParams
from rove.core.records import REWARD_ERRORS, ErrorInfo, RolloutRecord
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
from rove.train.sequences import TrainingSequence, rewards_by_turn, sequences_from_record

DRAWN = "examples/drawn"
"""Metric: number of examples drawn from the dataset so far, including skipped ones; the next step continues after them."""


class CollectedStep(NamedTuple):
    """The rollouts of a step, with their training sequences and metrics."""

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
        # They end a response where the environment expects its end; other arguments would change the probabilities.
        stops = {name: value for name, value in env.sampling_args.items() if name in ("stop", "stop_token_ids")}
        self.sampling = msgspec.structs.replace(
            SamplingParams.from_args(stops), temperature=config.temperature, max_tokens=config.max_tokens
        )
        self.order = ExampleOrder(self.examples, config.curriculum, config.seed, config.steps, config.groups)
        self.difficulty = Difficulty(config.filter)
        self.difficulty.add(run.outcomes())
        self._prefetched: asyncio.Task[CollectedStep] | None = None
        self._stored_bytes = 0

    @property
    def is_prefetching(self) -> bool:
        """Whether the next step's rollouts are being collected in advance."""
        return self._prefetched is not None

    def prefetch(self, step: int) -> None:
        """Collect a step's rollouts in the background, for the next `take`."""
        file = self.run.path / "rollouts.jsonl"
        self._stored_bytes = file.stat().st_size if file.exists() else 0
        self._prefetched = asyncio.create_task(self.collect(step))

    async def take(self, step: int) -> CollectedStep:
        """Return the rollouts of a step (counted from 0); collect them unless they were prefetched. See `collect`."""
        collected = await (self._prefetched or self.collect(step))
        self._prefetched = None
        return collected

    async def collect(self, step: int) -> CollectedStep:
        """Run the groups of a step; with dynamic sampling, further groups replace zero-advantage groups."""
        started = time.perf_counter()
        config = self.config
        chooser = StepExamples(self.order, self.difficulty, step, self.drawn)
        chosen: list[int] = []
        records: list[RolloutRecord] = []
        missing_groups = config.groups
        rounds = 0
        while True:
            planned_count = len(chosen)
            chosen += chooser.take(missing_groups)
            # `plan` numbers equal examples, so it needs those of the earlier rounds to give each group its own key.
            groups = self._plan_groups(step, chosen)[planned_count:]
            records += await self._run_groups(step, groups)
            check_failures(records, step + 1)
            rollouts, counts = self._training_sequences(records)
            useful_groups = counts["groups/all"] - counts["groups/zero_spread"] - counts["groups/too_few"]
            missing_groups = config.groups - int(useful_groups)
            if missing_groups <= 0 or rounds == config.filter.dynamic_sampling_rounds:
                break
            rounds += 1
        check_rewards(records, step + 1)
        self.difficulty.add(records)
        # Stored in the metrics, so that a killed run draws the same examples again.
        self.drawn = chooser.position
        sampling = {
            "groups/resampled": float(len(chosen) - config.groups),
            "groups/rounds": float(rounds),
            "examples/skipped": float(chooser.skipped),
            DRAWN: float(chooser.position),
            "time/sampling": time.perf_counter() - started,
        }
        return CollectedStep(records, self._weigh(rollouts), {**rollout_metrics(records), **counts, **sampling})

    def _plan_groups(self, step: int, chosen: Sequence[int]) -> list[list[Job]]:
        examples = [self.examples[index] for index in chosen]
        return plan_groups(examples, self.config.rollouts_per_example, self.config.seed, step)

    def _training_sequences(
        self, records: Sequence[RolloutRecord]
    ) -> tuple[list[list[TrainingSequence]], dict[str, float]]:
        config = self.config
        return training_sequences(records, config.truncated, config.advantage_estimator, config.gamma)

    def _weigh(self, rollouts: Sequence[Sequence[TrainingSequence]]) -> list[TrainingSequence]:
        return weigh(rollouts, self.config.aggregation, self.config.aggregation_constant)

    async def _run_groups(self, step: int, groups: Sequence[Sequence[Job]]) -> list[RolloutRecord]:
        rollouts = run_groups(
            self.env,
            self.client,
            groups,
            sampling=self.sampling,
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
        # Stored only when all have finished: a step that is killed before is sampled again.
        for record in records:
            self.run.append_rollout(record)
        return records

    def state(self) -> JsonObject:
        """Return the state that a checkpoint needs in addition to the weights."""
        return {}

    async def discard_prefetched(self) -> None:
        """Cancel `prefetch`, and delete its rollouts."""
        await self.close()
        self._prefetched = None
        self.run.truncate("rollouts.jsonl", self._stored_bytes)

    async def close(self) -> None:
        """Cancel the rollouts in progress."""
        if self._prefetched is not None:
            self._prefetched.cancel()
            await asyncio.gather(self._prefetched, return_exceptions=True)


def rows_needed(config: RLConfig, env: Environment) -> int:
    """Return how many training rows a run may use.

    In the dataset's order, these are the rows that the run's steps take. In any other order, a run may use every row, so the
    result is -1 (all rows) unless the number of rows is unknown.
    """
    order = config.curriculum
    uses_any_row = order.shuffle or order.stratify or order.column or config.filter.skips_examples
    if uses_any_row and env.count_examples(-1, train=True) is not None:
        return -1
    max_rounds = 1 + config.filter.dynamic_sampling_rounds
    return config.steps * config.groups * max_rounds


def check_failures(records: Sequence[RolloutRecord], number: int) -> None:
    """Raise a RunError if every rollout of step `number` failed."""
    error = records[0].error
    # A single failed rollout is left out; if all fail, the cause is the same, and the next steps would fail too.
    if error is not None and all(record.scores is None for record in records):
        raise all_failed(f"step {number}", error)


def all_failed(activity: str, error: ErrorInfo) -> RunError:
    """Return the error that says that every rollout of an activity failed, the first one with `error`."""
    # The message of a ConfigError says what to change; its traceback would only hide it.
    details = "" if error.type == "ConfigError" else f"\n{error.traceback}"
    return RunError(f"every rollout of {activity} failed; the first: {error.phase}: {error.message}{details}")


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
        if all(name in score.rewards and name in score.extras.get(REWARD_ERRORS, ()) for score in scores):
            raise RunError(
                f"step {number} has no usable rewards; {broken_reward(name, error)}. "
                "Fix the function, or let it return 0.0 for responses that it cannot score"
            )


def plan_groups(examples: Sequence[JsonObject], group_size: int, seed: int, step: int) -> list[list[Job]]:
    """Return the groups of these examples in a step; more examples at the end do not change the groups of earlier examples.

    Args:
        seed: Random seed of the run.
    """
    return list(plan(examples, group_size, derive_seed(seed, step)))


def turn_rewards(group: Sequence[RolloutRecord], truncated: str = "keep") -> list[list[float]]:
    """Return the rewards of each scored rollout of a group: a single reward, or one reward per turn if any turn has one.

    A turn without a reward gets 0, and the rollout's own reward is added to its last turn. With "zero", every turn of a truncated
    rollout gets 0.
    """
    steps = chain.from_iterable(record.steps for record in group)
    has_turn_rewards = any(step.reward is not None for step in steps)
    earned: list[list[float]] = []
    for record in group:
        # Rewards of turns add to the reward of the rollout: docs/decisions/turn_rewards.md.
        rewards = rewards_by_turn(record) if has_turn_rewards else [record.reward or 0.0]
        factor = 0.0 if truncated == "zero" and record.is_truncated else 1.0
        earned.append([factor * reward for reward in rewards])
    return earned


def training_sequences(
    records: Sequence[RolloutRecord], truncated: str = "keep", estimator: str = "mean", gamma: float = 1.0
) -> tuple[list[list[TrainingSequence]], dict[str, float]]:
    """Compute the advantages of a step's rollouts and cut each rollout into training sequences.

    Failed rollouts (with "mask", also truncated rollouts) are left out of their group, and zero-advantage groups are skipped.

    Returns:
        The sequences of each rollout, ordered by example and rollout index; and counts of groups and rollouts.
    """
    # Rollouts finish in any order. Sorted, the same rollouts give the same batches and the same weights, bit for bit.
    groups: dict[str, list[RolloutRecord]] = {}
    for record in sorted(records, key=lambda record: (record.example_id, record.example_key, record.rollout_index)):
        groups.setdefault(record.example_key, []).append(record)

    def is_trained(record: RolloutRecord) -> bool:
        is_masked = truncated == "mask" and record.is_truncated
        # A failed rollout has no reward, so it is no part of the mean of its group.
        return record.scores is not None and not is_masked

    trained = [list(filter(is_trained, group)) for group in groups.values()]
    usable = [group for group in trained if len(group) >= 2]
    rewards = [turn_rewards(group, truncated) for group in usable]
    advantages = batch_advantages(rewards, estimator, gamma)

    rollouts: list[list[TrainingSequence]] = []
    for group, group_advantages in zip(usable, advantages, strict=True):
        if group_advantages is None:
            continue
        for record, turn_advantages in zip(group, group_advantages, strict=True):
            rollouts.append(sequences_from_record(record, turn_advantages))
    counts = {
        "groups/all": float(len(groups)),
        "groups/zero_spread": float(advantages.count(None)),
        "groups/too_few": float(len(groups) - len(usable)),
        "rollouts/failed": float(sum(record.scores is None for record in records)),
        "rollouts/truncated": float(sum(record.is_truncated for record in records)),
    }
    return rollouts, counts


def weigh(rollouts: Sequence[Sequence[TrainingSequence]], aggregation: str, constant: float) -> list[TrainingSequence]:
    """Return the sequences of a step with their weights in the loss, relative to a mean over the step's tokens.

    Args:
        rollouts: The sequences of each rollout.
        aggregation, constant: See `token_weights`.
    """
    sequences: list[TrainingSequence] = []
    numbers: list[int] = []
    for number, rollout in enumerate(rollouts):
        sequences += rollout
        numbers += [number] * len(rollout)
    counts = [sequence.num_trained for sequence in sequences]
    weights = token_weights(aggregation, counts, numbers, constant)
    # The trainer divides by the tokens of the step, so the weights are multiplied by them.
    total = sum(counts)
    return [
        msgspec.structs.replace(sequence, weight=weight * total)
        for sequence, weight in zip(sequences, weights, strict=True)
    ]


def rollout_metrics(records: Sequence[RolloutRecord]) -> dict[str, float]:
    """Return mean rewards and metrics of the scored rollouts, and the mean length of all rollouts in tokens."""
    scored = [record for record in records if record.scores is not None]
    scores = [record.scores for record in scored if record.scores is not None]
    metrics = _means("reward", [score.rewards for score in scores])
    metrics |= _means("metrics", [score.metrics for score in scores])
    metrics["reward/mean"] = mean([score.reward for score in scores])  # last: a function may be named mean, too
    turns = [[step.reward for step in record.steps if step.reward is not None] for record in scored]
    if any(turns):
        metrics["turn_reward/mean"] = mean([math.fsum(rewards) for rewards in turns])
    metrics["length/mean"] = mean([float(record.usage.completion_tokens) for record in records])
    return metrics


def _means(kind: str, values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each function over the rollouts that have it; the environments of an `EnvGroup` have different
    functions.
    """
    by_name: dict[str, list[float]] = {}
    for functions in values:
        for name, value in functions.items():
            by_name.setdefault(name, []).append(value)
    return {f"{kind}/{name}": mean(of_rollouts) for name, of_rollouts in by_name.items()}
