"""Environments in which the model calls Python functions."""

from __future__ import annotations

import asyncio
import copy
import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from rove.core.errors import (
    ConfigError,
    InfraError,
    LimitReachedError,
    ToolCallError,
    ToolError,
    ToolParseError,
    ends_task,
    nearest,
    phase,
)
from rove.core.messages import Message, Messages, ToolMessage, UserMessage, as_message, text_of
from rove.core.state import State
from rove.envs.environment import Turn, stop
from rove.envs.multi_turn import MultiTurnEnv
from rove.rendering.tool_calls import Call, read_calls, unreadable_call
from rove.rubrics import Rubric
from rove.tools.tool import (
    QUOTED,
    Arguments,
    Tool,
    as_content,
    call_arguments,
    call_id,
    call_name,
    make_tool,
    tool_identity,
)
from rove.utils.functions import is_async, maybe_await
from rove.utils.threads import Threads, UnderWay

GRACE_SECONDS = 1.0
"""So long a cleanup waits for sync tools that are still at work, before it is left to run after them."""

_sync_calls: ContextVar[UnderWay | None] = ContextVar("rove_sync_calls", default=None)
"""The sync calls under way of the rollout that is played here."""


class ToolMonitorRubric(Rubric):
    """Metrics of the calls a model made, whether they went well or not: `total_tool_calls`, and `NAME_calls` of every tool."""

    def __init__(self) -> None:
        super().__init__()
        self.add_metric(total_tool_calls)

    def add_tool_metric(self, name: str) -> None:
        """Count the calls of a tool.

        Raises:
            ConfigError: there is a metric of that name.
        """

        def tool_calls(completion: Messages) -> int:
            return called_names(completion).count(name)

        self.add_metric(tool_calls, name=f"{name}_calls")

    def remove_tool_metric(self, name: str) -> None:
        """Count the calls of a tool no more."""
        self._functions = [function for function in self._functions if function.name != f"{name}_calls"]


def called_names(completion: Messages) -> list[str | None]:
    """The names of the functions that the model called, in order; None for a call without one."""
    calls = (m.get("tool_calls") for m in completion if m["role"] == "assistant")
    return [call_name(call) for some in calls if isinstance(some, list) for call in some]


def total_tool_calls(completion: Messages) -> int:
    """Calls in the rollout, of tools there are and of others."""
    return len(called_names(completion))


def _as_exception(error: BaseException) -> Exception:
    """An error that a model can be told of."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        return RuntimeError("the tool was cancelled")
    return RuntimeError(
        f"exit({error.code!r})" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
    )


def _classes(stop_errors: Any) -> tuple[type[BaseException], ...]:
    given: list[Any] = [stop_errors] if isinstance(stop_errors, type) else list(stop_errors or ())
    for one in given:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise ConfigError(f"stop_errors has {one!r}; expected exception classes")
    return tuple(given)


class ToolEnv(MultiTurnEnv):
    """The model calls tools, typed Python functions, until it answers without calling one.

    Every call is answered by one tool message, in the order of the calls. What is wrong with a call (an unknown tool,
    arguments that are no JSON or do not fit) and what a tool raises is told to the model in that message; an `InfraError` or
    `LimitReachedError` of a tool ends the rollout instead. A result is a text, a list of content parts (images), or anything
    else, as JSON.

    Args:
        tools: functions, sync or async, see `rove.tools.make_tool`. Default: none.
        max_turns: most model turns; -1 = no limit.
        error_formatter: the text that the model is told of an exception.
        stop_errors: exception classes that are not told but end the rollout, as the cause of a `ToolParseError` or
            `ToolCallError`. Default: none.
        parallel_calls: whether the calls of one turn run at once; else one after the other.
        max_threads: most sync tools that run at once, in threads, so that one that blocks does not hold up other rollouts;
            0 = they run on the event loop, as quick ones may.
        Everything else: see `MultiTurnEnv`.

    Raises:
        ConfigError: something cannot be a tool, two have one name, stop_errors are no exception classes, or message_type is
            "completion".
    """

    def __init__(
        self,
        tools: Sequence[Callable[..., Any] | Tool] | None = None,
        max_turns: int = 10,
        error_formatter: Callable[[Exception], str] = str,
        stop_errors: Iterable[type[Exception]] | None = None,
        parallel_calls: bool = True,
        max_threads: int = 64,
        **kwargs: Any,
    ):
        super().__init__(max_turns=max_turns, **kwargs)
        if self.message_type != "chat":
            raise ConfigError("tools have no place in a raw text (message_type 'completion'); expected 'chat'")
        self.error_formatter = error_formatter
        self.stop_errors = _classes(stop_errors)
        self.parallel_calls = parallel_calls
        self._threads = Threads(max_threads) if max_threads > 0 else None
        self.tools: list[Callable[..., Any]] = []
        """The functions."""
        self.tool_map: dict[str, Callable[..., Any]] = {}
        """The functions by name."""
        self.tool_defs: list[dict[str, Any]] = []
        """What the model is told of them, in the OpenAI wire form."""
        self._known: dict[str, Tool] = {}
        self._late: set[asyncio.Task[None]] = set()
        self.tool_monitor_rubric = ToolMonitorRubric()
        self.add_rubric(self.tool_monitor_rubric)
        if callable(tools):
            raise ConfigError(f"tools is {tools!r}; expected a list of functions")
        for tool in tools or ():
            self._add(make_tool(tool))

    def add_tool(self, tool: Callable[..., Any] | Tool) -> None:
        """Give the model one more tool.

        Raises:
            ConfigError: it cannot be a tool, or there is one of its name.
        """
        self._add(make_tool(tool))

    def remove_tool(self, tool: Callable[..., Any] | Tool | str) -> None:
        """Take a tool away, given as it was added or by its name.

        Raises:
            ConfigError: there is no such tool.
        """
        name = tool if isinstance(tool, str) else next((n for n, t in self._known.items() if tool in (t, t.func)), None)
        if name not in self._known:
            raise ConfigError(f"{tool!r} is none of the tools; {nearest(str(tool), self._known)}")
        known = self._known.pop(name)
        self.tools.remove(known.func)
        del self.tool_map[name]
        self.tool_defs = [one for one in self.tool_defs if one["function"]["name"] != name]
        self.tool_monitor_rubric.remove_tool_metric(name)

    def _add(self, tool: Tool) -> None:
        name = tool.name
        if name in self._known:
            raise ConfigError(
                f"there is a tool named '{name}' already; give one of them another: make_tool(func, name=…)"
            )
        if f"{name}_calls" in self.rubric.names:
            raise ConfigError(
                f"tool '{name}' is counted by the metric '{name}_calls', but the rubric has one of that name"
            )
        self._known[name] = tool
        self.tools.append(tool.func)
        self.tool_map[name] = tool.func
        self.tool_defs.append(tool.definition)
        self.tool_monitor_rubric.add_tool_metric(name)

    @property
    def identity(self) -> dict[str, Any]:
        """See `Environment.identity`; the tools count, too: their code and what the model is told of them."""
        return {**super().identity, "tools": [tool_identity(tool) for tool in self._known.values()]}

    async def run(self, state: State, turn: Turn) -> None:
        """Show the model the tools, then as `MultiTurnEnv`.

        `state["tools"]` is this rollout's own list of them: `setup_state` may change it. The model can call those in it.
        """
        state["tools"] = copy.deepcopy(self.tool_defs)
        state["sync_calls"] = UnderWay()
        token = _sync_calls.set(state["sync_calls"])
        try:
            await super().run(state, turn)
        finally:
            _sync_calls.reset(token)

    async def clean_up(self, state: State) -> None:
        """See `Environment.clean_up`; no method runs while a sync tool of the rollout may use what it frees.

        Nothing can stop a thread, so that a time limit may leave a tool at work. After `GRACE_SECONDS` the rollout goes on
        without its cleanup, which then runs as soon as the tool has returned, but not once the event loop has ended. To make
        a tool return, stop what it waits for in an override of this method.
        """
        calls: UnderWay = state.get("sync_calls") or UnderWay()
        late = bool(calls)
        try:
            if calls:
                await asyncio.wait(calls, timeout=GRACE_SECONDS)
                late = bool(calls)
        finally:  # cancelled, too
            if late:
                task = asyncio.ensure_future(self._clean_up_late(state, calls))
                self._late.add(task)
                task.add_done_callback(self._late.discard)
        if not late:
            await super().clean_up(state)

    async def _clean_up_late(self, state: State, calls: UnderWay) -> None:
        while calls:
            await asyncio.wait(calls)
        try:
            await super().clean_up(state)
        except BaseException as error:  # no word of it gets into the record, which is made
            if ends_task(error):
                raise
            warnings.warn(f"a cleanup that waited for a tool failed: {type(error).__name__}: {error}", stacklevel=1)

    async def tear_down(self) -> None:
        """See `Environment.tear_down`; first those cleanups that wait for a sync tool, for at most `GRACE_SECONDS`."""
        if self._late:
            _, waiting = await asyncio.wait(self._late, timeout=GRACE_SECONDS)
            if waiting:
                warnings.warn(
                    f"a sync tool of {len(waiting)} rollout(s) has not returned, so that what they hold is not freed; give what "
                    "it waits for a time limit",
                    stacklevel=1,
                )
        await super().tear_down()

    @stop
    def no_tools_called(self, state: State) -> bool:
        """The model has answered without calling a tool, and without beginning a call that nobody can read."""
        steps = state["trajectory"]
        if not steps or steps[-1].completion[-1].get("tool_calls"):
            return False
        return steps[-1].finish_reason == "length" or not unreadable_call(text_of(steps[-1].completion[-1]))

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """One tool message per call of the model's turn, in the order of the calls; one of the user if there is none that can be
        read.

        Raises:
            ToolParseError: the calls are no list, or lie in the text of an endpoint's answer; or they cannot be read and
                `stop_errors` say so.
            ToolError: one call failed with an error of `stop_errors`; in parallel once all have ended.
        """
        calls = messages[-1].get("tool_calls") or []
        if not isinstance(calls, list):
            raise ToolParseError(f"tool_calls is {type(calls).__name__}; expected a list of calls")
        text = text_of(messages[-1])
        if not calls and (how := unreadable_call(text)):
            steps = state["trajectory"]
            if steps and steps[-1].tokens is None and read_calls(text, how, self._known)[1]:
                raise ToolParseError(
                    "the answer has a tool call in its text and no tool_calls: whoever serves the model does not read them "
                    "(vLLM: --enable-auto-tool-choice --tool-call-parser …; scripted policies return "
                    "AssistantMessage(None, tool_calls=[…]))"
                )
            example = how.write([Call("name", {"argument": "value"})])
            error = ToolParseError(f"the tool call cannot be read; expected, with nothing left out: {example}")
            return [UserMessage(self._told(error, error, ToolParseError, "")["content"])]
        if not self.parallel_calls or len(calls) < 2:
            return [await self._answer(call, messages, state) for call in calls]
        # Whoever fails waits for the others: nothing may still be at work when the rollout cleans up.
        answers = await asyncio.gather(*(self._attempt(call, messages, state) for call in calls))
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, Message)]

    async def call_tool(self, tool_name: str, tool_args: Arguments, tool_call_id: str, **kwargs: Any) -> Message:
        """Call a tool with arguments that fit; what it raises passes through.

        Raises:
            ToolParseError: there is no such tool.
        """
        self._tool(tool_name)
        result = await self._result(self.tool_map[tool_name], tool_args)
        return ToolMessage(as_content(result), tool_call_id)

    async def _result(self, func: Callable[..., Any], arguments: Arguments) -> Any:
        if self._threads is None or is_async(func):
            return await maybe_await(func(**arguments))
        call = functools.partial(func, **arguments)
        return await maybe_await(await self._in_thread(self._threads, call, _sync_calls.get()))

    async def _in_thread(self, threads: Threads, call: Callable[[], Any], under_way: UnderWay | None) -> Any:
        return await threads.run(call, under_way)

    async def _attempt(self, call: Any, messages: Messages, state: State) -> Message | BaseException:
        try:
            return await self._answer(call, messages, state)
        except BaseException as error:
            if ends_task(error):
                raise
            return error

    async def _answer(self, call: Any, messages: Messages, state: State) -> Message:
        id = call_id(call)
        try:
            tool = self._tool(call_name(call), state)
            arguments = tool.read(call_arguments(call))
        except ToolParseError as error:
            return self._told(error, error.__cause__ or error, ToolParseError, id)
        arguments = await self._prepared(tool, arguments, messages, state)
        with phase(f"tool {tool.name}"):
            try:
                return as_message(await self.call_tool(tool.name, arguments, id), role="tool")
            except (InfraError, LimitReachedError):
                raise
            except BaseException as error:
                if ends_task(error):
                    raise
                return self._told(_as_exception(error), error, ToolCallError, id)

    async def _prepared(self, tool: Tool, arguments: Arguments, messages: Messages, state: State) -> Arguments:
        """The arguments that the tool is called with."""
        return arguments

    def _tool(self, name: str | None, state: Mapping[str, Any] | None = None) -> Tool:
        """The tool of that name, among those that a rollout has been shown if there is one."""
        if name is None:
            raise ToolParseError('a tool call names no function; expected {"function": {"name": …, "arguments": …}}')
        known = self._known
        if state is not None and "tools" in state:
            shown = {call_name(definition) for definition in state["tools"] or ()}
            known = {one: tool for one, tool in known.items() if one in shown}
        if name not in known:
            given = name[:QUOTED]
            raise ToolParseError(f"there is no tool '{given}'; {nearest(given, known)}")
        return known[name]

    def _told(self, error: Exception, cause: BaseException, kind: type[ToolError], id: str) -> ToolMessage:
        """The message that tells the model of an error, unless the rollout is to end with it."""
        if isinstance(error, self.stop_errors) or isinstance(cause, self.stop_errors):
            if isinstance(error, kind):
                raise error
            raise kind(f"{type(error).__name__}: {error}") from error
        return ToolMessage(self.error_formatter(error) or repr(error), id)
