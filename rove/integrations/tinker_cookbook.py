"""rove environments in tinker-cookbook (0.6): `Env`, `EnvGroupBuilder` and the dataset of its RL training loop.

The cookbook samples the tokens, and rove runs the environment: its turns, tools, opponents, limits, and rewards.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import chz  # pyright: ignore[reportMissingImports]
import tinker  # pyright: ignore[reportMissingImports]
from tinker_cookbook.rl.types import (  # pyright: ignore[reportMissingImports]
    STOP_METRIC_PREFIX,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    InitialObservationOverflow,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
    StopReason,
    Trajectory,
)
from tinker_cookbook.tokenizer_utils import get_tokenizer  # pyright: ignore[reportMissingImports]

from rove.core.errors import ConfigError, LimitReachedError
from rove.core.plain import JsonMapping, Row
from rove.core.protocols import Generation, OnToken, SamplingParams
from rove.core.records import PROMPT_TOO_LONG, RolloutRecord
from rove.engine.client import EngineClient
from rove.envs.environment import Environment
from rove.integrations.stepwise import LibraryEngine, StepwiseRollout, check_stepwise, load_once
from rove.integrations.trl import NOT_SUPPORTED
from rove.rendering.renderer import Renderer
from rove.rollouts.run_rollouts import run_rollouts
from rove.train.sequences import total_reward

STOP_REASONS = {
    "answered": StopReason.COMPLETED,
    "max_turns_reached": StopReason.MAX_TURNS,
    "max_total_tokens_reached": StopReason.MAX_TOKENS,
    "max_total_completion_tokens_reached": StopReason.MAX_SAMPLED_TOKENS,
    "timeout_reached": StopReason.ROLLOUT_TIMEOUT,
    PROMPT_TOO_LONG: StopReason.CONTEXT_OVERFLOW,
}
"""Stop condition of rove → the cookbook's name for it; other conditions keep their names."""


@dataclass(frozen=True)
class RoveSource:
    """An environment and the model's tokenizer, by their names, so that builders can be sent to other processes.

    Args:
        env: Name of the environment.
        model: Name of the model, for the cookbook's `get_tokenizer`. Its chat template renders the messages.
        env_args: Arguments of `load_environment`.
        limits: Limits of a rollout; see `rove.Limits`.
        seed: Seed of the environment's random choices.
        max_context: Maximum tokens of prompt and response. A longer prompt ends the rollout, which is scored.
    """

    env: str
    model: str
    env_args: JsonMapping = field(default_factory=dict)
    limits: Mapping[str, float] | None = None
    seed: int = 0
    max_context: int = 32768

    def load(self) -> tuple[Environment, Renderer]:
        """Return the environment and the renderer, loaded once per process.

        Raises:
            ConfigError: The cookbook cannot run the environment, or the tokenizer has no chat template.
        """
        env = load_once(self.env, self.env_args)
        check_stepwise(env, self.env, "tinker-cookbook", NOT_SUPPORTED)
        return env, _renderer(self.model)


@functools.cache
def _renderer(model: str) -> Renderer:
    tokenizer = get_tokenizer(model)
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            f"the tokenizer of '{model}' has no chat template, which rove needs to render messages; use a model of "
            "Hugging Face that has one"
        )
    return Renderer(tokenizer)


class RoveEnv(Env):
    """One rollout of a rove environment.

    Observations are the exact tokens that rove shows the model; each extends the tokens of the turns before it, unless the
    environment changes earlier messages. The last step has the reward of the rollout and those of its turns. A failed rollout
    raises `RolloutError`, so that the cookbook's strategy retries it or leaves it out instead of giving it a reward of 0.

    Args:
        source: Environment and tokenizer.
        row: A row of the environment's dataset.
        index: Position of the rollout in its group.
    """

    def __init__(self, source: RoveSource, row: Row, index: int = 0):
        self.source = source
        self.row = row
        self.index = index
        self._rollout: StepwiseRollout[list[int], Generation] = StepwiseRollout()

    @property
    def record(self) -> RolloutRecord | None:
        """The scored rollout, with log-probabilities of 0; None before its end."""
        return self._rollout.record

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[int]] | InitialObservationOverflow:
        """Start the rollout, and return its first prompt."""
        env, renderer = self.source.load()
        self._stop_ids = sorted(renderer.stop_ids)
        engine = _SteppedEngine(self._rollout, self.source.max_context)
        self._rollout.start(
            run_rollouts(
                env,
                [self.row],
                EngineClient(engine, renderer),
                first_index=self.index,
                max_concurrent=1,
                seed=self.source.seed,
                limits=self.source.limits or {},
            )
        )
        prompt_ids = await self._rollout.next_request()
        if prompt_ids is None:
            reward, metrics = self.result()
            return InitialObservationOverflow(reward, metrics)
        return tinker.ModelInput.from_ints(prompt_ids), self._stop_ids

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        """Take the tokens of a turn, and return the next prompt, or the rewards."""
        # The cookbook does not pass its log-probabilities on, and a record must not have NaN.
        finish_reason = (extra or {}).get("stop_reason", "stop")
        self._rollout.reply(Generation(list(action), [0.0] * len(action), finish_reason, 0))
        prompt_ids = await self._rollout.next_request()
        if prompt_ids is not None:
            return StepResult(0.0, False, tinker.ModelInput.from_ints(prompt_ids), self._stop_ids)
        reward, metrics = self.result()
        return StepResult(reward, True, tinker.ModelInput.empty(), self._stop_ids, metrics)

    async def end(self, stop_reason: str) -> None:
        """End the rollout at a limit of the cookbook, and score it."""
        await self._rollout.end(LimitReachedError(stop_reason))

    def result(self) -> tuple[float, dict[str, float | int]]:
        """Return the reward of the rollout with the rewards of its turns, and the metrics of the rubric."""
        record = self.record
        assert record is not None
        assert record.scores is not None
        condition = record.stop_condition or "unknown"
        metrics = {f"reward/{name}": value for name, value in record.scores.rewards.items()}
        metrics |= record.scores.metrics
        metrics[f"{STOP_METRIC_PREFIX}{STOP_REASONS.get(condition, condition)}"] = 1.0
        return total_reward(record), metrics

    async def close(self) -> None:
        """Cancel the rollout, if it has not ended."""
        await self._rollout.close()


class _SteppedEngine(LibraryEngine):
    """An inference engine whose tokens are the actions of the cookbook."""

    def __init__(self, rollout: StepwiseRollout[list[int], Generation], context: int):
        self.rollout = rollout
        self.context = context
        self.max_batch = 1
        self.policy_version = 0

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int = 0,
        on_token: OnToken | None = None,
        adapter: str | None = None,
    ) -> Generation:
        """Return the tokens that the cookbook samples for a prompt."""
        self.remaining_context(prompt_ids)  # a longer prompt ends the rollout
        return await self.rollout.ask(list(prompt_ids))


@dataclass
class RoveGroupBuilder(EnvGroupBuilder):
    """The group of rollouts of one row."""

    source: RoveSource
    row: Row
    group_size: int
    _envs: list[RoveEnv] = field(default_factory=list)

    async def make_envs(self) -> Sequence[RoveEnv]:
        """Return the environments of the group; further calls, for retries, return further members with other seeds."""
        # A retry with the same index would repeat the seed, and probably the failure.
        first = len(self._envs)
        envs = [RoveEnv(self.source, self.row, index) for index in range(first, first + self.group_size)]
        self._envs += envs
        return envs

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, dict[str, float | int]]]:
        """Score the rollouts that ended at a limit of the cookbook; the others have their rewards in the last step."""
        results: list[tuple[float, dict[str, float | int]]] = []
        for trajectory, env in zip(trajectory_group, env_group, strict=True):
            if env.record is None:
                await env.end(str(trajectory.stop_reason))
                results.append(env.result())
            else:
                results.append((0.0, {}))
        return results

    async def cleanup(self) -> None:
        """Cancel the rollouts that have not ended."""
        for env in self._envs:
            await env.close()
        self._envs = []

    def logging_tags(self) -> list[str]:
        """Return the name of the environment."""
        return [self.source.env]


class RoveDataset(RLDataset):
    """Rows of a rove environment, in batches of groups."""

    def __init__(self, source: RoveSource, rows: Sequence[Row], batch_size: int, group_size: int):
        self.source = source
        self.rows = rows
        self.batch_size = batch_size
        self.group_size = group_size

    def get_batch(self, index: int) -> Sequence[RoveGroupBuilder]:
        """Return the builders of a batch."""
        rows = self.rows[index * self.batch_size : (index + 1) * self.batch_size]
        return [RoveGroupBuilder(self.source, row, self.group_size) for row in rows]

    def __len__(self) -> int:
        """Return the number of batches."""
        return math.ceil(len(self.rows) / self.batch_size)


@chz.chz
class RoveDatasetBuilder(RLDatasetBuilder):
    """The `dataset_builder` of the cookbook's `rl.train.Config`.

    Example:
        >>> builder = RoveDatasetBuilder(source=RoveSource("tictactoe", "Qwen/Qwen3-8B"), batch_size=16, group_size=8)
    """

    source: RoveSource
    batch_size: int
    """Groups per batch."""
    group_size: int
    """Rollouts per row."""
    num_examples: int = -1
    """Maximum number of training rows; -1 = all."""
    num_eval_examples: int = 0
    """Number of evaluation rows, each with one rollout; 0 = none, -1 = all."""

    async def __call__(self) -> tuple[RoveDataset, RoveDataset | None]:
        """Return the training rows, and the evaluation rows."""
        env, _ = self.source.load()
        train = RoveDataset(self.source, env.get_dataset(self.num_examples), self.batch_size, self.group_size)
        if self.num_eval_examples == 0:
            return train, None
        rows = env.get_eval_dataset(self.num_eval_examples)
        return train, RoveDataset(self.source, rows, self.batch_size, 1)
