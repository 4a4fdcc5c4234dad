"""rove environments in SkyRL: environments of skyrl-gym (0.4) for its generator.

SkyRL samples the tokens, and rove runs the environment: its turns, opponents, limits, and rewards.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from itertools import count
from typing import Any

from skyrl_gym.envs.base_text_env import (  # pyright: ignore[reportMissingImports]
    BaseTextEnv,
    BaseTextEnvStepOutput,
)

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage
from rove.core.plain import JsonMapping, MessageDict, Row
from rove.core.protocols import Request, Response
from rove.envs.environment import Environment
from rove.integrations import text_messages
from rove.integrations.stepwise import StepwiseClient, StepwiseRollout, check_stepwise, load_once
from rove.integrations.trl import NOT_SUPPORTED
from rove.integrations.verifiers_export import check_chat_messages
from rove.rollouts.run_rollouts import run_rollouts
from rove.train.sequences import total_reward
from rove.utils.event_loop import run_in_background

ENV_CLASS = "rove"
"""Id under which `register` makes `RoveTextEnv` known to skyrl-gym."""


def register() -> None:
    """Register `RoveTextEnv` with skyrl-gym as "rove"; in SkyRL, do this in the process of the generator."""
    from skyrl_gym.envs.registration import register as register_env  # pyright: ignore[reportMissingImports]

    register_env(id=ENV_CLASS, entry_point="rove.integrations.skyrl:RoveTextEnv")


def rows_for_skyrl(
    env: str,
    env_args: JsonMapping | None = None,
    num_examples: int = -1,
    train: bool = True,
    limits: Mapping[str, float] | None = None,
    seed: int = 0,
) -> list[Row]:
    """Return rows for the files in SkyRL's `data.train_data` and `data.val_data`, such as one JSON object per line.

    Args:
        env: Name of the environment.
        env_args: Arguments of `load_environment`.
        num_examples: Maximum number of rows; -1 = all.
        train: Whether to return training rows; otherwise, evaluation rows.
        limits: Limits of a rollout; see `rove.Limits`.
        seed: Seed of the environment's random choices.
    """
    # SkyRL's configuration has no settings for environments that it does not know, so the rows contain them.
    settings = {"env": env, "env_args": env_args or {}, "limits": limits or {}, "seed": seed}
    rows: list[Row] = []
    for row in _load(env, env_args or {}).examples(num_examples, train):
        # The column is a text, because columns of Parquet files have one type for all rows.
        source = json.dumps({**settings, "row": row})
        rows.append({"prompt": text_messages(row["prompt"]), "env_class": ENV_CLASS, "rove": source})
    return rows


class RoveTextEnv(BaseTextEnv):
    """One rollout of a rove environment, for rows of `rows_for_skyrl`.

    The last step has the reward of the rollout with the rewards of its turns. If the rollout fails, the step raises
    `RolloutError`: it never has a reward of 0.

    Args:
        env_config: Not used: the settings are in the row.
        extras: Columns of the row. SkyRL adds `max_turns`, which does not apply: the environment has its own.
    """

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None):
        super().__init__()
        source = (extras or {}).get(ENV_CLASS)
        if not isinstance(source, str):
            raise ConfigError(
                "the row has no column 'rove'; make rows with rove.integrations.skyrl.rows_for_skyrl and write them to the "
                "file in data.train_data"
            )
        self.source = source
        self.settings = json.loads(source)
        self.env = _load(self.settings["env"], self.settings["env_args"])
        self.row: Row = self.settings["row"]
        self._rollout: StepwiseRollout[Request, Response] = StepwiseRollout()
        self._messages: list[MessageDict] = []

    def init(self, prompt: list[MessageDict]) -> tuple[list[MessageDict], dict[str, Any]]:
        """Start the rollout, and return its first prompt."""
        return run_in_background(self._start()), {}

    async def _start(self) -> list[MessageDict]:
        client = StepwiseClient(self._rollout)
        self._rollout.start(
            run_rollouts(
                self.env,
                [self.row],
                client,
                first_index=next(_rollout_indices[self.source]),
                max_concurrent=1,
                limits=self.settings["limits"],
                seed=self.settings["seed"],
            )
        )
        request = await self._rollout.next_request()
        if request is None:
            raise ConfigError(f"the rollout of row {self.row['example_id']} ended before its first turn")
        return self._new_messages(request)

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take the model's text, and return the environment's messages, or the reward."""
        self.turns += 1
        return run_in_background(self._step(action))

    async def _step(self, action: str) -> BaseTextEnvStepOutput:
        self._messages.append({"role": "assistant", "content": action})
        self._rollout.reply(Response(AssistantMessage(action)))
        request = await self._rollout.next_request()
        if request is not None:
            return BaseTextEnvStepOutput(observations=self._new_messages(request), reward=0.0, done=False, metadata={})
        record = self._rollout.record
        assert record is not None
        reward = total_reward(record)
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata=self.get_metrics())

    def _new_messages(self, request: Request) -> list[MessageDict]:
        """Return the messages since the last turn."""
        messages = text_messages(request.messages)
        num_sent = len(self._messages)
        if messages[:num_sent] != self._messages:
            raise ConfigError(
                "the environment changed earlier messages, but SkyRL's generator only appends messages; use another trainer"
            )
        self._messages = messages
        return messages[num_sent:]

    def get_metrics(self) -> dict[str, Any]:
        """Return the rewards and metrics of the rubric's functions; {} before the end."""
        record = self._rollout.record
        if record is None or record.scores is None:
            return {}
        return {**record.scores.rewards, **record.scores.metrics}

    def close(self) -> None:
        """Cancel the rollout, if it has not ended."""
        run_in_background(self._rollout.close())


def _load(name: str, env_args: JsonMapping) -> Environment:
    """Return the environment, loaded once per process.

    Raises:
        ConfigError: SkyRL's generator cannot run the environment.
    """
    env = load_once(name, env_args)
    check_stepwise(env, name, "SkyRL", NOT_SUPPORTED)
    check_chat_messages(name, env.message_type, "SkyRL")
    if getattr(env, "tool_defs", None):
        raise ConfigError(
            f"'{name}' has tools, but SkyRL's generator passes only texts to environments; expected one without tools"
        )
    return env


_rollout_indices: defaultdict[str, count[int]] = defaultdict(count)
"""Positions of the rollouts of each row in its group: each needs another seed."""
