"""v0's tool environments: Python functions called one after the other, with the arguments as the model gave them."""

from __future__ import annotations

import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from rove.compat.verifiers import legacy
from rove.compat.verifiers.calls import call_user
from rove.compat.verifiers.clients import wire_tool
from rove.compat.verifiers.decorators import stop
from rove.compat.verifiers.errors import ToolCallError, ToolParseError
from rove.compat.verifiers.messages import Messages, ToolMessage
from rove.compat.verifiers.mode import outdated
from rove.compat.verifiers.multiturn import MultiTurnEnv
from rove.compat.verifiers.rubrics import Rubric, RubricGroup
from rove.compat.verifiers.schema import convert_func_to_tool_def, is_valid_tool_content_parts
from rove.compat.verifiers.types import State
from rove.core.errors import LimitReachedError
from rove.utils.functions import function_name


class ToolMonitorRubric(Rubric):
    """Metrics of a rollout's calls: `total_tool_calls`, and `NAME_calls` of every tool."""

    def __init__(self, tool_names: Sequence[str] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.tool_names: list[str] = []
        self.add_metric(self.total_tool_calls)
        for name in tool_names or ():
            self.add_tool_metric(name)

    def add_tool_metric(self, tool_name: str) -> None:
        """Count the calls of a tool."""
        if tool_name not in self.tool_names:
            self.tool_names.append(tool_name)
            self.add_metric(self.get_tool_call_count_func(tool_name))

    def remove_tool_metric(self, tool_name: str) -> None:
        """Count the calls of a tool no more."""
        if tool_name in self.tool_names:
            self.tool_names.remove(tool_name)
            place = self._get_reward_func_names().index(f"{tool_name}_calls")
            del self.funcs[place], self.weights[place]

    async def total_tool_calls(self, completion: Messages) -> float:
        """Calls in the rollout."""
        return float(len(_called(completion)))

    def get_tool_call_count_func(self, tool_name: str) -> Callable[..., Any]:
        """A metric that counts the calls of one tool."""

        async def tool_calls(completion: Messages) -> int:
            return _called(completion).count(tool_name)

        tool_calls.__name__ = f"{tool_name}_calls"
        return tool_calls


def _called(completion: Messages) -> list[str]:
    said = (message for message in completion if message["role"] == "assistant")
    return [call["name"] for message in said for call in message.get("tool_calls") or []]


def _name(tool: Any) -> str:
    return getattr(tool, "__name__", type(tool).__name__)


class ToolEnv(MultiTurnEnv):
    """The model calls functions until it answers without a call.

    Args:
        tools: the functions.
        error_formatter: what the model is told of an exception.
        stop_errors: exception classes that end the rollout instead.
        Everything else: see `MultiTurnEnv`.
    """

    def __init__(
        self,
        tools: list[Callable[..., Any]] | None = None,
        max_turns: int = 10,
        error_formatter: Callable[[Exception], str] = str,
        stop_errors: Sequence[type[Exception]] | None = None,
        **kwargs: Any,
    ):
        self.tools: list[Callable[..., Any]] = tools or []
        self.error_formatter = error_formatter
        self.stop_errors = list(stop_errors or [])
        self.tool_map: dict[str, Callable[..., Any]] = {_name(tool): tool for tool in self.tools}
        definitions = [convert_func_to_tool_def(tool) for tool in self.tools]
        super().__init__(tool_defs=definitions, max_turns=max_turns, **kwargs)
        own = self._own_monitor()
        self.tool_monitor_rubric = ToolMonitorRubric() if own is None else own
        for name in self.tool_map:
            self.tool_monitor_rubric.add_tool_metric(name)
        if own is None:
            self.add_rubric(self.tool_monitor_rubric)

    def _own_monitor(self) -> ToolMonitorRubric | None:
        """The rubric of the package that counts calls already, as a `ToolRubric` does."""
        rubrics = self.rubric.rubrics if isinstance(self.rubric, RubricGroup) else [self.rubric]
        return next((one for one in rubrics if isinstance(one, ToolMonitorRubric)), None)

    def __getattr__(self, name: str) -> Any:
        """`oai_tools`, as packages for 0.1.2 to 0.1.10 read the tools."""
        if name != "oai_tools":
            raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")
        outdated("env.oai_tools", "read env.tool_defs")
        return [wire_tool(tool) for tool in self.tool_defs or []]

    def _should_stop_for_error(self, err: Exception) -> bool:
        return isinstance(err, tuple(self.stop_errors))

    def add_tool(self, tool: Callable[..., Any]) -> None:
        """Give the model one more tool."""
        self._add(tool, convert_func_to_tool_def(tool))

    def _add(self, tool: Callable[..., Any], definition: Any) -> None:
        self.tools.append(tool)
        self.tool_defs = [*(self.tool_defs or []), definition]
        self.tool_map[_name(tool)] = tool
        self.tool_monitor_rubric.add_tool_metric(_name(tool))

    def remove_tool(self, tool: Callable[..., Any]) -> None:
        """Take a tool away."""
        self.tools.remove(tool)
        self.tool_defs = [one for one in self.tool_defs or [] if one.name != _name(tool)]
        self.tool_map.pop(_name(tool))
        self.tool_monitor_rubric.remove_tool_metric(_name(tool))

    @stop
    async def no_tools_called(self, state: State) -> bool:
        """The model has answered without a call."""
        last = state["trajectory"][-1]["completion"][-1] if state["trajectory"] else None
        return last is not None and last["role"] == "assistant" and not last.get("tool_calls")

    async def call_tool(self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str, **kwargs: Any) -> Any:
        """Call a tool; what it raises passes through."""
        result = await call_user(self.tool_map[tool_name], **tool_args)
        content = result if is_valid_tool_content_parts(result) else str(result)
        return ToolMessage(role="tool", content=content, tool_call_id=tool_call_id)

    def _read(self, call: Any) -> Any:
        return json.loads(call["arguments"])

    def _prepared(self, name: str, args: Any, messages: Messages, state: State, **kwargs: Any) -> Any:
        return args

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Any:
        """One tool message per call, in order.

        Raises:
            ToolParseError: the arguments cannot be read, with an error of `stop_errors`.
            ToolCallError: a tool failed with one of `stop_errors`.
        """
        calls = messages[-1].get("tool_calls")
        assert calls is not None
        answers: list[Any] = []
        for call in calls:
            try:
                args = self._read(call)
            except Exception as error:
                answers.append(self._told(error, ToolParseError, call["id"]))
                continue
            args = self._prepared(call["name"], args, messages, state, **kwargs)
            args = await args if inspect.isawaitable(args) else args
            try:
                answers.append(await self.call_tool(call["name"], args, call["id"]))
            except LimitReachedError:
                raise
            except Exception as error:
                answers.append(self._told(error, ToolCallError, call["id"]))
        return answers

    def _told(self, error: Exception, kind: type[Exception], call_id: str) -> ToolMessage:
        if self._should_stop_for_error(error):
            raise kind from error
        return ToolMessage(role="tool", content=self.error_formatter(error), tool_call_id=call_id)


class StatefulToolEnv(ToolEnv):
    """A `ToolEnv` whose `update_tool_args` adds to the arguments of every call what the model is not told of.

    Arguments: see `ToolEnv`.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.skipped_args: dict[str, list[str]] = {}

    def add_tool(self, tool: Callable[..., Any], args_to_skip: Sequence[str] = ()) -> None:
        """Give the model one more tool, without telling it of some arguments."""
        self._add(tool, convert_func_to_tool_def(filter_signature(tool, args_to_skip)))
        self.skipped_args[_name(tool)] = list(args_to_skip)

    def remove_tool(self, tool: Callable[..., Any]) -> None:
        """Take a tool away."""
        super().remove_tool(tool)
        self.skipped_args.pop(_name(tool), None)

    @abstractmethod
    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """The arguments to call a tool with."""

    def _read(self, call: Any) -> Any:
        args = super()._read(call)
        if not isinstance(args, dict):
            raise ValueError(f"Expected tool arguments to be a dict, got {type(args).__name__}: {args}")
        return args

    def _prepared(self, name: str, args: Any, messages: Messages, state: State, **kwargs: Any) -> Any:
        return legacy.update_tool_args(self, name, args, messages, state, **kwargs)


def filter_signature(func: Callable[..., Any], args_to_skip: Sequence[str]) -> Callable[..., Any]:
    """A function that looks as if it had fewer arguments."""
    if not args_to_skip:
        return func

    def shown(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    signature = inspect.signature(func)
    kept = [one for name, one in signature.parameters.items() if name not in args_to_skip and name != "self"]
    shown.__name__ = function_name(func)
    shown.__doc__ = func.__doc__
    shown.__signature__ = signature.replace(parameters=kept)  # pyright: ignore[reportFunctionMemberAccess]
    shown.__annotations__ = {k: v for k, v in getattr(func, "__annotations__", {}).items() if k not in args_to_skip}
    shown.__module__ = func.__module__
    return shown
