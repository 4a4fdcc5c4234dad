"""Environments of skyrl-gym, with rows of SkyRL."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

from rove.core.errors import ConfigError, Error, nearest
from rove.core.messages import Messages, as_messages, text_of
from rove.core.plain import JsonMapping, Row
from rove.core.state import State, bookkeeping
from rove.envs.environment import cleanup, stop
from rove.envs.multi_turn import MultiTurnEnv
from rove.envs.question_files import FileRow
from rove.envs.question_split import Split
from rove.integrations import require_library
from rove.integrations.environments.gym import MAX_CONCURRENT_STEPS
from rove.integrations.environments.row_files import HELD_OUT, read_row_files
from rove.rubrics import Rubric
from rove.utils.threads import PendingCalls, Threads


class SkyRLGymEnv(MultiTurnEnv):
    """An environment of skyrl-gym: each model turn is an action, and the observations are messages.

    The rows are those of SkyRL: `prompt` (messages), and further columns that the environment gets as `extras`, such as
    `reward_spec`. The reward is `episode_reward`, the sum of the steps' rewards. Metric: `episode_steps`. State keys:
    `skyrl_env`, `skyrl_rewards` (of the steps), `skyrl_metrics` (what `get_metrics` returns). A `postprocessed_action` is
    not applied: the conversation keeps what the model wrote.

    Example:
        env = rove.load_environment("skyrl:gsm8k", data="train.parquet", eval_data="validation.parquet")

    Args:
        env_class: An id of skyrl-gym, such as "gsm8k".
        data: File of rows: .parquet or .jsonl.
        eval_data: File of rows for evaluation. Default: a part of `data`.
        env_config: Settings of the environment, as `skyrl_gym.ENV_CLASS` in SkyRL's configuration.
        held_out: Fraction of the different prompts in `data` that are only for evaluation, if there is no `eval_data`.
        max_turns: Maximum number of model turns, which is also `extras["max_turns"]`, as in SkyRL.
        kwargs: See `MultiTurnEnv`.

    Raises:
        ConfigError: skyrl-gym is not installed, or has no such environment, or a row has no prompt or is for another environment.
    """

    def __init__(
        self,
        env_class: str,
        data: str,
        eval_data: str | None = None,
        env_config: JsonMapping | None = None,
        held_out: float = HELD_OUT,
        max_turns: int = 10,
        **kwargs: Any,
    ):
        require_library("skyrl_gym", "skyrl", "SkyRLGymEnv")
        self.gym: Any = importlib.import_module("skyrl_gym")
        if env_class not in self.gym.registry:
            raise ConfigError(f"skyrl-gym has no environment '{env_class}'; {nearest(env_class, self.gym.registry)}")
        self.env_class = env_class
        self.env_config = dict(env_config or {})
        files = read_row_files(data, eval_data, held_out, self._row)
        self.split: Split = files.split
        self._threads = Threads(MAX_CONCURRENT_STEPS)  # steps may run code or send requests
        rubric = Rubric([episode_reward])
        rubric.add_metric(episode_steps)
        super().__init__(
            dataset=files.training,
            eval_dataset=files.evaluation,
            max_turns=max_turns,
            **{"rubric": rubric, **kwargs},
        )

    def _row(self, path: str, row: FileRow) -> Row:
        extras = dict(row.values)
        prompt = extras.pop("prompt", None)
        if not prompt or not isinstance(prompt, list):
            raise ConfigError(f"{path}, {row.position}: the column 'prompt' is {prompt!r}; expected a list of messages")
        env_class = extras.get("env_class", self.env_class)
        if env_class != self.env_class:
            raise ConfigError(f"{path}, {row.position} is for '{env_class}'; expected rows for '{self.env_class}'")
        return {"prompt": prompt, "info": {"extras": extras}}

    @property
    def split_description(self) -> str:
        """Description of how the rows are split into training rows and held-out rows."""
        return self.split.description

    async def setup_state(self, state: State, **kwargs: Any) -> None:
        """Create the environment, which may change the prompt."""
        state.update(skyrl_env=None, skyrl_rewards=[], skyrl_done=False, skyrl_metrics={}, skyrl_calls=set())
        extras = {**state["info"]["extras"], "max_turns": self.max_turns}
        make = functools.partial(self.gym.make, self.env_class, env_config=self.env_config, extras=extras)
        env = state["skyrl_env"] = await self._run_in_thread(state, make)
        prompt = [dict(message) for message in state["prompt"]]
        messages, _ = await self._run_in_thread(state, functools.partial(env.init, prompt))
        state["prompt"] = as_messages(messages)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Take the model's action, and return the observations."""
        env = state["skyrl_env"]
        step = await self._run_in_thread(state, functools.partial(env.step, text_of(messages[-1])))
        reward = float(step["reward"])
        if not math.isfinite(reward):
            raise Error(f"step of '{self.env_class}' returned the reward {reward}; expected a finite number")
        state["skyrl_rewards"].append(reward)
        state.update(skyrl_done=bool(step["done"]), skyrl_metrics=dict(env.get_metrics()))
        return as_messages(step["observations"] or [])

    @stop(priority=60)
    def is_done(self, state: State) -> bool:
        """Stop when the episode has ended."""
        return state["skyrl_done"]

    @cleanup
    async def close_env(self, state: State) -> None:
        """Close the environment."""
        if state.get("skyrl_env") is not None:
            await self._run_in_thread(state, state["skyrl_env"].close)

    async def _run_in_thread(self, state: State, call: Callable[[], object]) -> Any:
        running: PendingCalls = state["skyrl_calls"]
        return await self._threads.run(call, running)


def episode_reward(state: State) -> float:
    """Sum of the steps' rewards."""
    return math.fsum(state["skyrl_rewards"])


def episode_steps(state: State) -> float:
    """Number of steps."""
    return float(len(bookkeeping(state).trajectory))
