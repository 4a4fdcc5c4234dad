"""Shapes from before 0.1.11 that are still understood, each with a warning that names the replacement."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rove.compat.verifiers.calls import maybe_await
from rove.compat.verifiers.mode import outdated
from rove.compat.verifiers.types import State, Tool


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


def former_is_completed(env: Any, base: type) -> Callable[[State, Any], Any] | None:
    """An `is_completed(messages, state)` of a package for 0.1.2 to 0.1.7; None where the class has none of its own."""
    func = type(env).is_completed
    if func is base.is_completed:
        return None
    outdated(f"{type(env).__name__}.is_completed", "mark a method (self, state) -> bool with @vf.stop")
    names = inspect.signature(func).parameters

    async def completed(state: State, messages: Any) -> bool:
        args = (messages, state) if len(names) > 2 and "messages" in names else (state,)
        return bool(await maybe_await(env.is_completed, *args))

    return completed
