"""Environments with tools for the argument `environment_factory` of TRL's `GRPOTrainer`, which calls tools as methods."""

from __future__ import annotations

import inspect
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from rove.core.errors import ConfigError
from rove.core.messages import text_of
from rove.core.plain import JsonMapping, JsonObject, Row, ToolDefinition
from rove.envs.environment import Environment
from rove.envs.loading import load_environment
from rove.envs.mcp import MCPEnv
from rove.integrations import require_library, text_messages
from rove.integrations.open_env_server import Episode
from rove.utils.event_loop import run_in_background

if TYPE_CHECKING:
    from datasets import Dataset  # pyright: ignore[reportMissingImports]

TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}
"""JSON type of an argument → the annotation from which transformers writes the schema."""
RESERVED = ("reset", "get_reward")
ENDED = "The task has ended."


class ToolEnvironments:
    """Makes environments for TRL's `environment_factory`: the tools of a rove environment are methods.

    TRL calls the tools itself, one at a time, and keeps the model's texts to itself. `get_reward` therefore scores the rollout
    with an empty last message: it suits rubrics that look at what the tools have done. For all other environments, for exact
    turns, and for limits, use `Rollouts`.

    Example:
        >>> environments = ToolEnvironments("lookup")
        >>> trainer = GRPOTrainer(
        ...     "models/tiny",
        ...     args=GRPOConfig("runs/trl"),
        ...     train_dataset=environments.dataset,
        ...     environment_factory=environments,
        ... )

    Args:
        env: An environment with tools, or its name.
        env_args: Arguments of `load_environment`, if `env` is a name.
        num_examples: Maximum number of training rows; -1 = all.

    Raises:
        ConfigError: The environment has no tools, group rewards, or a tool that TRL cannot call as a method.
    """

    def __init__(self, env: Environment | str, env_args: Mapping[str, object] | None = None, *, num_examples: int = -1):
        arguments: dict[str, Any] = dict(env_args or {})
        self.env: Environment = load_environment(env, **arguments) if isinstance(env, str) else env
        self.name = self.env.env_id or type(self.env).__name__
        tools: list[ToolDefinition] = getattr(self.env, "tool_defs", [])
        if isinstance(self.env, MCPEnv):
            # Only running servers list their tools. They run in the event loop in which the rollouts will.
            run_in_background(self.env.connect())
            tools = self.env.tool_defs
        if not tools:
            raise ConfigError(f"'{self.name}' has no tools, which TRL's environment_factory needs; use Rollouts")
        if self.env.scoring_rubric.has_group_rewards:
            raise ConfigError(f"'{self.name}' has group rewards, but TRL scores each environment alone; use Rollouts")
        self.rows = self.env.get_dataset(num_examples)
        methods = {tool["function"]["name"]: _as_method(tool["function"]) for tool in tools}
        for name in methods:
            if name in RESERVED or name.startswith("_") or not name.isidentifier():
                raise ConfigError(
                    f"'{self.name}' has the tool '{name}', which cannot be a method of TRL's environments; rename it, or use "
                    "Rollouts"
                )
        self._rollout_indices: defaultdict[int, count[int]] = defaultdict(count)
        self._type = type(self.name, (_ToolEnvironment,), methods)

    @property
    def dataset(self) -> Dataset:
        """The training rows, as TRL's `train_dataset`."""
        require_library("datasets", "hf", "ToolEnvironments")
        from datasets import Dataset  # pyright: ignore[reportMissingImports]

        rows: list[dict[str, object]] = []
        for position, row in enumerate(self.rows):
            rows.append({"prompt": text_messages(row["prompt"]), "rove_row": position})
        return Dataset.from_list(rows)

    def next_index(self, position: int) -> int:
        """Return the position of the next rollout of a row in its group: each needs another seed."""
        return next(self._rollout_indices[position])

    def __call__(self) -> _ToolEnvironment:
        """Return an environment, as TRL's trainer requests it."""
        return self._type(self)


class _ToolEnvironment:
    """One environment of TRL, which runs one rollout after another."""

    def __init__(self, owner: ToolEnvironments):
        self._owner = owner
        self._episode: Episode | None = None
        self._last: JsonObject = {}

    def reset(self, rove_row: int, **columns: object) -> str | None:
        """Begin a rollout of a row; return the text that the environment adds to its prompt, which TRL adds too."""
        row = self._owner.rows[rove_row]
        index = self._owner.next_index(rove_row)
        run_in_background(self._begin(row, index))
        # A rollout that failed before its first turn has no prompt; `get_reward` returns None.
        return None if self._last["done"] else self._added_text(row)

    async def _begin(self, row: Row, index: int) -> None:
        if self._episode is not None:
            await self._episode.close()
        self._episode = Episode(self._owner.env, row, 0, "train", f"{row['example_id']}-{index}", index)
        self._last = await self._episode.observe()

    def _added_text(self, row: Row) -> str | None:
        """Return the text at the end of the first prompt that the row does not have.

        Raises:
            ConfigError: The environment has changed the prompt in another way.
        """
        *leading, last = text_messages(row["prompt"])
        *first_leading, first_last = text_messages(self._last["observation"]["messages"])
        is_extended = first_last["role"] == last["role"] and first_last["content"].startswith(last["content"])
        if first_leading != leading or not is_extended:
            raise ConfigError(
                f"'{self._owner.name}' replaces the prompt of its rows when a rollout begins, but TRL can only add text to its "
                "last message; use Rollouts"
            )
        return first_last["content"][len(last["content"]) :] or None

    def _call(self, name: str, arguments: JsonMapping) -> str:
        """Call a tool as the model, and return its result."""
        if self._episode is None or self._last["done"]:
            return ENDED
        call = {
            "id": f"call_{name}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        self._last = run_in_background(self._episode.act({"message": "", "tool_calls": [call]}))
        messages = self._last["observation"]["messages"]
        results = [text_of(message) for message in messages if message["role"] == "tool"]
        return "\n".join(results) or ENDED

    def get_reward(self) -> float | None:
        """Return the reward of the rollout; None if it failed."""
        # The rubric scores complete rollouts, but TRL keeps the model's last texts to itself.
        if self._episode is not None and not self._last["done"]:
            self._last = run_in_background(self._finish(self._episode))
        return self._last.get("reward")

    async def _finish(self, episode: Episode) -> JsonObject:
        """End the rollout with empty messages of the model: an environment may answer the first ones."""
        observation = self._last
        while not observation["done"]:
            observation = await episode.act({"message": ""})
        return observation


def _as_method(function: JsonMapping) -> Callable[..., str]:
    """Return a tool as a method with the annotations and the docstring that transformers needs for its schema."""
    name, schema = function["name"], function.get("parameters") or {}
    properties: Mapping[str, JsonMapping] = schema.get("properties") or {}
    required = set(schema.get("required") or ())

    def method(self: _ToolEnvironment, **arguments: Any) -> str:
        return self._call(name, arguments)

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    annotations: dict[str, Any] = {"return": str}
    lines = [function.get("description") or name, "", "Args:"]
    for argument, definition in properties.items():
        annotations[argument] = TYPES.get(str(definition.get("type")), Any)
        default = inspect.Parameter.empty if argument in required else definition.get("default")
        parameters.append(
            inspect.Parameter(
                argument, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotations[argument]
            )
        )
        lines.append(f"    {argument}: {definition.get('description') or argument}")
    method.__name__ = name
    method.__qualname__ = name
    method.__doc__ = "\n".join(lines)
    method.__annotations__ = annotations
    setattr(method, "__signature__", inspect.Signature(parameters, return_annotation=str))  # noqa: B010  untyped attribute
    return method
