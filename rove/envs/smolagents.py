"""Use smolagents in environments: the library's tools for any model, and its agents as external agents."""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import threading
from collections.abc import Callable, Sequence
from typing import Any, NotRequired, Optional, Required, TypedDict, Union

from rove.core.code_digest import digest_code
from rove.core.errors import ConfigError
from rove.core.plain import Identity, JsonMapping, JsonObject, is_mapping
from rove.core.state import State
from rove.envs.agent import AgentEnv, task_of
from rove.envs.tool import ToolEnv
from rove.server.proxy import Access
from rove.tools.tool import Tool

PYTHON_TYPES: dict[str, object] = {
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
"""Name of a smolagents type → Python type; a model passes images and audio by name."""


class SmolaToolEnv(ToolEnv):
    """A `ToolEnv` that accepts smolagents tools in addition to functions.

    The model sees `description` and `inputs` of a tool; invalid arguments are reported to the model. A tool is set up at its
    first call and then called in threads, concurrently for several rollouts, so its `forward` must be thread-safe.

    Args:
        tools: `smolagents.Tool`s (as made by `@tool`), functions, or `rove.tools.tool.Tool`s.
        **kwargs: see `ToolEnv`.

    Raises:
        ConfigError: as for `ToolEnv`, or smolagents is not installed.

    Example:
        env = rove.SmolaToolEnv(tools=[smolagents.WikipediaSearchTool()], dataset=dataset, rubric=rubric)
    """

    def __init__(self, tools: Sequence[Any] | None = None, **kwargs: Any):
        check_installed()
        super().__init__(tools=[as_tool(tool) for tool in tools or ()], **kwargs)

    def add_tool(self, tool: object) -> None:
        """Add a tool; see `ToolEnv.add_tool`."""
        super().add_tool(as_tool(tool))


class SmolaAgentEnv(AgentEnv):
    """A smolagents agent carries out each rollout: a `ToolCallingAgent`, a `CodeAgent`, or a team of agents.

    It uses the run's model. Its answer is the rollout's answer (see `AgentEnv`); `state["agent_state"]` is "success" or
    "max_steps_error". It runs in a thread and is interrupted when the rollout ends.

    A `CodeAgent` runs the model's code in this process unless its `executor_type` isolates it. Both kinds of agents
    rewrite model output in later prompts, so each turn starts a new branch, which only makes training slower.

    Args:
        make_agent: called with a smolagents model for every rollout, in its thread; returns a new agent.
        **kwargs: see `AgentEnv`.

    Raises:
        ConfigError: as for `AgentEnv`, or smolagents (with openai) is not installed.

    Example:
        def make_agent(model):
            return smolagents.CodeAgent(tools=[], model=model, executor_type="docker")

        env = rove.SmolaAgentEnv(make_agent, dataset=dataset, rubric=rubric)
    """

    def __init__(self, make_agent: Callable[[Any], Any], **kwargs: Any):
        check_installed()
        for name in {"agent", "command"} & kwargs.keys():
            raise ConfigError(f"SmolaAgentEnv has no argument '{name}'; expected make_agent, or an AgentEnv")
        super().__init__(**kwargs)
        self.make_agent = make_agent

    @property
    def identity(self) -> Identity:
        """Like `AgentEnv.identity`, with the code of `make_agent`."""
        return {**super().identity, "agent": digest_code(self.make_agent)}

    async def run_agent(self, access: Access, state: State) -> Any:
        """Create the agent and run it on the task."""
        agents: list[Any] = []
        try:
            return await self.in_thread(functools.partial(self._run, access, state, agents), state)
        except asyncio.CancelledError:
            for agent in agents:
                agent.interrupt()
            raise

    def _run(self, access: Access, state: State, agents: list[Any]) -> object:
        model = importlib.import_module("smolagents").OpenAIServerModel(
            model_id=access.model,
            api_base=access.base_url,
            api_key=access.api_key,
            client_kwargs={"max_retries": 0},  # rove retries already
        )
        agent = self.make_agent(model)
        agents.append(agent)
        result = agent.run(task_of(state), return_full_result=True)
        state["agent_state"] = result.state
        return str(result.output) if isinstance(result.output, str) else result.output  # a plain str, not an AgentText


def as_tool(tool: Any) -> Any:
    """Convert a smolagents tool; return anything else unchanged."""
    inputs = getattr(tool, "inputs", None)
    if isinstance(tool, Tool) or not is_mapping(inputs) or not hasattr(tool, "forward"):
        return tool
    optional = {name for name, spec in inputs.items() if spec.get("nullable")}
    fields: dict[str, object] = {}
    for name, spec in inputs.items():
        hint = _hint(tool, name, spec)
        fields[name] = NotRequired[hint] if name in optional else Required[hint]
    arguments: Any = TypedDict("arguments", fields)  # pyright: ignore[reportArgumentType]  fields known only at run time
    required = [name for name in inputs if name not in optional]
    schema: JsonObject = {
        "type": "object",
        "properties": {name: _schema(spec) for name, spec in inputs.items()},
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
    """Calls a smolagents tool and sets it up once, even if called concurrently."""

    def __init__(self, tool: Any):
        self.tool = tool
        self.__wrapped__ = tool.forward  # its code identifies the tool
        self._setting_up = threading.Lock()

    def __call__(self, **arguments: Any) -> object:
        with self._setting_up:
            if not self.tool.is_initialized:
                self.tool.setup()
        return self.tool(**arguments)


def _hint(tool: Any, name: str, spec: JsonMapping) -> object:
    kinds = spec.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    for kind in kinds:
        if kind not in PYTHON_TYPES:
            raise ConfigError(
                f"input '{name}' of tool '{tool.name}' is of type '{kind}'; expected {', '.join(PYTHON_TYPES)}"
            )
    hint = Union[tuple(PYTHON_TYPES[kind] for kind in kinds)]  # noqa: UP007  a variable number
    return Optional[hint] if spec.get("nullable") else hint  # noqa: UP045  `hint` may be any object


def _schema(spec: JsonMapping) -> JsonObject:
    """Return the JSON schema of an input, including keywords that smolagents does not know."""
    kinds = spec.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    names = ["string" if kind in ("image", "audio") else kind for kind in kinds]
    schema = {name: value for name, value in spec.items() if name not in ("type", "nullable")}
    if "any" in names:
        return schema
    return {"type": names[0] if len(names) == 1 else names, **schema}


def check_installed() -> None:
    """Raise ConfigError if smolagents is not installed."""
    if importlib.util.find_spec("smolagents") is None:
        raise ConfigError("smolagents is not installed; run: pip install 'rove[smolagents]'")
