"""Shapes from before 0.1.11 that are still understood, each with a warning that names the replacement."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from packaging.version import Version

from rove.compat.verifiers.calls import call_user
from rove.compat.verifiers.mode import outdated
from rove.compat.verifiers.types import State, Tool
from rove.utils.functions import is_async

_ASYNC = Version("0.1.3")
"""The release in which environments became asynchronous, and `max_turns` unlimited unless given."""


def tool_defs(tools: Sequence[Any] | None) -> list[Tool] | None:
    """Definitions as `Tool`; OpenAI's form, as until 0.1.10, is understood."""
    if tools is None:
        return None
    made: list[Tool] = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping):
            outdated(
                "a tool as {'type': 'function', 'function': {…}}",
                "give {'name': …, 'description': …, 'parameters': {…}}",
            )
            tool = {"parameters": {"type": "object", "properties": {}}, **function}
        made.append(Tool.model_validate(tool))
    return made


def info_tools(info: Mapping[str, Any]) -> Sequence[Any] | None:
    """The tools of a row's own; None where it has none."""
    if info.get("oai_tools") is None:
        return info.get("tool_defs")
    outdated("info['oai_tools']", "call it info['tool_defs']: [{'name': …, 'description': …, 'parameters': {…}}]")
    given = info["oai_tools"]
    return given if isinstance(given, list) else None


def reply_of(state: State, said: Any) -> Any:
    """What `env_response` answers; as until 0.1.7 it may be a pair of messages and state, in 0.1.0 of one message."""
    if not (isinstance(said, tuple) and len(said) == 2 and isinstance(said[1], Mapping)):
        return said
    outdated("env_response returning (messages, state)", "return the messages and change the state in place")
    if said[1] is not state:
        state.update(said[1])
    return [said[0]] if isinstance(said[0], Mapping) else said[0]


def update_tool_args(env: Any, name: str, args: Any, messages: Any, state: State, **kwargs: Any) -> Any:
    """What `env.update_tool_args` returns; until 0.1.3 it was not given the tool's name."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(env.update_tool_args).parameters.values()
    if sum(one.kind in kinds for one in parameters) == 3 and "tool_name" not in {one.name for one in parameters}:
        outdated("update_tool_args(tool_args, messages, state)", "take tool_name first")
        return env.update_tool_args(args, messages, state, **kwargs)
    return env.update_tool_args(name, args, messages, state, **kwargs)


def max_turns(env: Any, given: int | None, base: type) -> int:
    """Most model turns where a package gives none: no limit, but 10 for packages that are written for 0.1.0 to 0.1.2, whose
    `is_completed` is synchronous."""
    func = type(env).is_completed
    is_old = env.written_for < _ASYNC or not (func is base.is_completed or is_async(func))
    if given is None and is_old:
        outdated(
            f"{type(env).__name__} without max_turns", "pass max_turns=10, the default of then, or -1 for no limit"
        )
        return 10
    return -1 if given is None else given


def former_is_completed(env: Any, base: type) -> Callable[[State, Any], Any] | None:
    """An `is_completed(messages, state)` of a package for 0.1.2 to 0.1.7; None where the class has none of its own."""
    func = type(env).is_completed
    if func is base.is_completed:
        return None
    outdated(f"{type(env).__name__}.is_completed", "mark a method (self, state) -> bool with @vf.stop")
    names = inspect.signature(func).parameters

    async def completed(state: State, messages: Any) -> bool:
        args = (messages, state) if len(names) > 2 and "messages" in names else (state,)
        return bool(await call_user(env.is_completed, *args))

    return completed
