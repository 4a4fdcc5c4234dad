"""smolagents in environments: its tools for our models, and its agents as foreign agents."""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NotRequired, Optional, Required, TypedDict, Union

from rove.core.digest import digest_code
from rove.core.errors import ConfigError
from rove.core.state import State
from rove.envs.agent import AgentEnv, task_of
from rove.envs.tool import ToolEnv
from rove.server.proxy import Access
from rove.tools.tool import Tool

TYPES: dict[str, Any] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": float,
    "array": list[Any],
    "object": dict[str, Any],
    "any": Any,
    "null": None,
    "image": str,
    "audio": str,
}
"""smolagents' types; of images and sounds a model can only give the name."""


class SmolaToolEnv(ToolEnv):
    """A `ToolEnv` whose tools may be those of smolagents, beside functions.

    What the model is told of one is its `description` and `inputs`; arguments are checked against these, and a wrong one is
    told to the model. A tool is set up at its first call, and then called in threads, for several rollouts at once:
    what its `forward` changes must allow that. Results are told as those of any tool.

    Args:
        tools: `smolagents.Tool`s (`@tool` makes such), functions, or `rove.tools.Tool`s.
        Everything else: see `ToolEnv`.

    Raises:
        ConfigError: as `ToolEnv`; or smolagents is not installed.
    """

    def __init__(self, tools: Sequence[Any] | None = None, **kwargs: Any):
        check_installed()
        super().__init__(tools=[as_tool(tool) for tool in tools or ()], **kwargs)

    def add_tool(self, tool: Any) -> None:
        """See `ToolEnv.add_tool`."""
        super().add_tool(as_tool(tool))


class SmolaAgentEnv(AgentEnv):
    """A smolagents agent plays each rollout: a `ToolCallingAgent`, a `CodeAgent`, or a team of such.

    Its model is the run's. Its answer is the rollout's, see `AgentEnv`; `state["agent_state"]` is "success" or
    "max_steps_error". It runs in a thread of its own, and is interrupted when the rollout ends.

    A `CodeAgent` runs the model's code in this process, unless its `executor_type` says otherwise: give it one that contains
    what nobody trusts. Both kinds of agent send back what the model said in other words, so that each of its turns starts a
    new branch, which costs time in training, nothing else.

    Args:
        make_agent: takes a smolagents model, and returns a new agent. Called for every rollout, in its thread.
        Everything else: see `AgentEnv`.

    Raises:
        ConfigError: as `AgentEnv`; or smolagents (with openai) is not installed.
    """

    def __init__(self, make_agent: Callable[[Any], Any], **kwargs: Any):
        check_installed()
        for name in {"agent", "command"} & kwargs.keys():
            raise ConfigError(f"SmolaAgentEnv has no argument '{name}'; expected make_agent, or an AgentEnv")
        super().__init__(**kwargs)
        self.make_agent = make_agent

    @property
    def identity(self) -> dict[str, Any]:
        """See `AgentEnv.identity`."""
        return {**super().identity, "agent": digest_code(self.make_agent)}

    async def run_agent(self, access: Access, state: State) -> Any:
        """Make the agent, and run it on the task."""
        agents: list[Any] = []
        try:
            return await self.in_thread(functools.partial(self._run, access, state, agents), state)
        except asyncio.CancelledError:
            for agent in agents:
                agent.interrupt()
            raise

    def _run(self, access: Access, state: State, agents: list[Any]) -> Any:
        model = importlib.import_module("smolagents").OpenAIServerModel(
            model_id=access.model,
            api_base=access.base_url,
            api_key=access.api_key,
            client_kwargs={"max_retries": 0},  # who answers has tried again already
        )
        agent = self.make_agent(model)
        agents.append(agent)
        result = agent.run(task_of(state), return_full_result=True)
        state["agent_state"] = result.state
        return str(result.output) if isinstance(result.output, str) else result.output  # plain, not an AgentText


def as_tool(tool: Any) -> Any:
    """A smolagents tool as one of ours; anything else as it is.

    Raises:
        ConfigError: an input of it is of a type that smolagents does not have.
    """
    inputs = getattr(tool, "inputs", None)
    if isinstance(tool, Tool) or not isinstance(inputs, Mapping) or not hasattr(tool, "forward"):
        return tool
    optional = {name for name, told in inputs.items() if told.get("nullable")}
    hints = {name: _hint(tool, name, told) for name, told in inputs.items()}
    fields = {name: NotRequired[hint] if name in optional else Required[hint] for name, hint in hints.items()}
    arguments: Any = TypedDict("arguments", fields)  # pyright: ignore[reportArgumentType]  whose fields only we know
    required = [name for name in inputs if name not in optional]
    schema = {
        "type": "object",
        "properties": {name: _schema(told) for name, told in inputs.items()},
        "required": required,
        "additionalProperties": False,
    }
    return Tool(
        name=tool.name,
        description=tool.description,
        parameters=schema,
        func=_Call(tool),
        type=arguments,
        required=frozenset(required),
    )


class _Call:
    """Calls a smolagents tool, which is set up once however many call it at first."""

    def __init__(self, tool: Any):
        self.tool = tool
        self.__wrapped__ = tool.forward  # whose code is the tool's
        self._setting_up = threading.Lock()

    def __call__(self, **arguments: Any) -> Any:
        with self._setting_up:
            if not self.tool.is_initialized:
                self.tool.setup()
        return self.tool(**arguments)


def _hint(tool: Any, name: str, told: Mapping[str, Any]) -> Any:
    kinds = told.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    for kind in kinds:
        if kind not in TYPES:
            raise ConfigError(f"input '{name}' of tool '{tool.name}' is of type '{kind}'; expected {', '.join(TYPES)}")
    hint = Union[tuple(TYPES[kind] for kind in kinds)]  # noqa: UP007  of so many
    return Optional[hint] if told.get("nullable") else hint  # noqa: UP045  of anything


def _schema(told: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of an input, which may say more of itself than smolagents knows of."""
    kinds = told.get("type", "any")
    names = [
        "string" if kind in ("image", "audio") else kind for kind in ([kinds] if isinstance(kinds, str) else kinds)
    ]
    schema = {name: value for name, value in told.items() if name not in ("type", "nullable")}
    if "any" in names:
        return schema
    return {"type": names[0] if len(names) == 1 else names, **schema}


def check_installed() -> None:
    """Refuse to go on without smolagents.

    Raises:
        ConfigError: it is not installed; the message says how it is.
    """
    if importlib.util.find_spec("smolagents") is None:
        raise ConfigError("smolagents is not installed; run: pip install 'rove[smolagents]'")
