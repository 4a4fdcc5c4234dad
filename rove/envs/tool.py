"""Environments in which the model calls Python functions."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, cast

from rove.core.checks import check_values
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
from rove.core.messages import (
    QUOTED,
    Message,
    Messages,
    ToolMessage,
    UserMessage,
    as_message,
    call_arguments,
    call_id,
    call_name,
    text_of,
)
from rove.core.plain import Arguments, Identity, JsonMapping, JsonObject, ToolDefinition, is_list, is_mapping
from rove.core.ranges import NonNegativeInt
from rove.core.state import State, bookkeeping
from rove.envs.environment import Turn, offered_tools, stop
from rove.envs.multi_turn import MultiTurnEnv
from rove.rendering.calls_in_text import call_left_in
from rove.rendering.tool_calls import Call, Format, read_calls, unparsed_call_format
from rove.rubrics import Rubric
from rove.tools.tool import Tool, ToolFunction, as_content, make_tool, tool_identity
from rove.utils.functions import is_async, maybe_await
from rove.utils.threads import PendingCalls, Threads

CLEANUP_GRACE_S = 1.0
"""Maximum seconds that a cleanup waits for running sync tools; after that, it is postponed until they return."""

_sync_calls: ContextVar[PendingCalls | None] = ContextVar("rove_sync_calls", default=None)
"""The running sync calls of the current rollout."""


class ToolMonitorRubric(Rubric):
    """Metrics of tool calls, successful or not: `total_tool_calls`, and `NAME_calls` per tool."""

    def __init__(self) -> None:
        super().__init__()
        self.add_metric(total_tool_calls)

    def add_tool_metric(self, name: str) -> None:
        """Count the calls of a tool."""

        def tool_calls(completion: Messages) -> int:
            return called_names(completion).count(name)

        self.add_metric(tool_calls, name=f"{name}_calls")

    def remove_tool_metric(self, name: str) -> None:
        """Stop counting the calls of a tool."""
        self._functions = [function for function in self._functions if function.name != f"{name}_calls"]


def called_names(completion: Messages) -> list[str | None]:
    """Return the names of all called functions, in order; None for a call without a name."""
    names: list[str | None] = []
    for message in completion:
        calls = message.get("tool_calls") if message["role"] == "assistant" else None
        if is_list(calls):  # a server may return anything
            names += map(call_name, calls)
    return names


def total_tool_calls(completion: Messages) -> int:
    """Calls in the rollout, of tools there are and of others."""
    return len(called_names(completion))


def _as_exception(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        return RuntimeError("the tool was cancelled")
    if isinstance(error, SystemExit):
        return RuntimeError(f"exit({error.code!r})")
    return RuntimeError(f"{type(error).__name__}: {error}")


def _exception_classes(stop_errors: Any) -> tuple[type[BaseException], ...]:
    classes: list[Any] = [stop_errors] if isinstance(stop_errors, type) else list(stop_errors or ())
    for entry in classes:
        if not (isinstance(entry, type) and issubclass(entry, BaseException)):
            raise ConfigError(f"stop_errors has {entry!r}; expected exception classes")
    return tuple(classes)


class ToolEnv(MultiTurnEnv):
    """The model calls tools (typed Python functions) until it answers without a call.

    Every call gets one tool message, in the order of the calls. Invalid calls (unknown tool, malformed arguments) and
    exceptions of a tool are reported to the model in this message; an `InfraError` or `LimitReachedError` of a tool
    ends the rollout instead. A result is a text, a list of content parts (images), or anything else, sent as JSON.

    Args:
        tools: sync or async functions; see `rove.tools.make_tool`.
        max_turns: maximum number of model turns; -1 = no limit.
        error_formatter: converts an exception to the text for the model.
        stop_errors: exception classes that end the rollout with a `ToolParseError` or `ToolCallError` instead of
            being reported to the model.
        parallel_calls: run the calls of one turn concurrently.
        max_threads: maximum number of concurrent sync tools, which run in threads so that a tool does not block other rollouts;
            0 runs them on the event loop.
        **kwargs: see `MultiTurnEnv`.

    Raises:
        ConfigError: invalid tool, duplicate name, invalid stop_errors, or message_type "completion".

    Example:
        def add(a: int, b: int) -> int:
            return a + b

        env = rove.ToolEnv(tools=[add], dataset=[{"question": "2 + 3?", "answer": "5"}], rubric=rubric)
    """

    def __init__(
        self,
        tools: Sequence[ToolFunction | Tool] | None = None,
        max_turns: int = 10,
        error_formatter: Callable[[Exception], str] = str,
        stop_errors: Iterable[type[Exception]] | None = None,
        parallel_calls: bool = True,
        max_threads: int = 64,
        **kwargs: Any,
    ):
        super().__init__(max_turns=max_turns, **kwargs)
        if self.message_type != "chat":
            raise ConfigError("tools cannot be used with message_type 'completion'; expected 'chat'")
        self.error_formatter = error_formatter
        self.stop_errors = _exception_classes(stop_errors)
        self.parallel_calls = parallel_calls
        self.max_threads = max_threads
        check_values(self, max_threads=NonNegativeInt)
        # A pool of rove's own: asyncio's has `cpus + 4` threads, so rollouts that wait for a server would queue, and joins
        # them at exit, so that a tool that never returns would keep the process alive (docs/decisions/tools.md).
        self._threads = Threads(max_threads) if max_threads > 0 else None
        self.tools: list[ToolFunction] = []
        self.tool_map: dict[str, ToolFunction] = {}
        self.tool_defs: list[ToolDefinition] = []
        """Tool definitions in the OpenAI wire format."""
        self._tools_by_name: dict[str, Tool] = {}
        self._pending_cleanups: set[asyncio.Task[None]] = set()
        self.tool_monitor_rubric = ToolMonitorRubric()
        self.add_rubric(self.tool_monitor_rubric)
        if callable(tools):
            raise ConfigError(f"tools is {tools!r}; expected a list of functions")
        for tool in tools or ():
            self._add(make_tool(tool))

    def add_tool(self, tool: ToolFunction | Tool) -> None:
        """Add a tool.

        Raises:
            ConfigError: the function cannot be a tool, or there is already a tool of this name.
        """
        self._add(make_tool(tool))

    def remove_tool(self, tool: ToolFunction | Tool | str) -> None:
        """Remove a tool; `tool` is the object that was added, or the tool's name.

        Raises:
            ConfigError: there is no such tool.
        """
        name = tool if isinstance(tool, str) else self._name_of(tool)
        if name not in self._tools_by_name:
            raise ConfigError(f"{tool!r} is not one of the tools; {nearest(str(tool), self._tools_by_name)}")
        removed = self._tools_by_name.pop(name)
        self.tools.remove(removed.func)
        del self.tool_map[name]
        self.tool_defs = [definition for definition in self.tool_defs if definition["function"]["name"] != name]
        self.tool_monitor_rubric.remove_tool_metric(name)

    def _name_of(self, tool: ToolFunction | Tool) -> str | None:
        for name, added in self._tools_by_name.items():
            if tool in (added, added.func):
                return name
        return None

    def _add(self, tool: Tool) -> None:
        name = tool.name
        if name in self._tools_by_name:
            raise ConfigError(f"a tool named '{name}' exists already; rename one of them: make_tool(func, name=…)")
        if f"{name}_calls" in self.scoring_rubric.names:
            raise ConfigError(
                f"the metric '{name}_calls' of tool '{name}' exists already in the rubric; rename one of them"
            )
        self._tools_by_name[name] = tool
        self.tools.append(tool.func)
        self.tool_map[name] = tool.func
        self.tool_defs.append(tool.definition)
        self.tool_monitor_rubric.add_tool_metric(name)

    @property
    def identity(self) -> Identity:
        """Like `Environment.identity`, with the code and definitions of the tools."""
        return {**super().identity, "tools": [tool_identity(tool) for tool in self._tools_by_name.values()]}

    async def run(self, state: State, turn: Turn) -> None:
        """Run a rollout as `MultiTurnEnv` does, with `state["tools"]`, a copy of the tool definitions.

        `setup_state` may change that list; the model can call only the tools in it.
        """
        state["tools"] = copy.deepcopy(self.tool_defs)
        internals = bookkeeping(state)
        internals.reads_tools, internals.sync_calls = True, PendingCalls()
        token = _sync_calls.set(internals.sync_calls)
        try:
            await super().run(state, turn)
        finally:
            _sync_calls.reset(token)

    async def post_rollout(self, state: State) -> object:
        """Wait up to `CLEANUP_GRACE_S` for sync tools that still run. An override must call this."""
        if calls := bookkeeping(state).sync_calls:
            await asyncio.wait(calls, timeout=CLEANUP_GRACE_S)

    async def clean_up(self, state: State) -> None:
        """Run the cleanup methods once no sync tool of the rollout is running.

        A time limit cannot stop a thread. After `CLEANUP_GRACE_S` the rollout continues without its cleanup, which runs when
        the tool returns, unless the event loop has ended. Override this method to interrupt a tool that is waiting.
        """
        # A cleanup must not release what a thread still uses: to close a sqlite3 connection during a query ends the whole
        # process (docs/decisions/tools.md).
        calls: PendingCalls = bookkeeping(state).sync_calls or PendingCalls()
        is_late = bool(calls)
        try:
            if calls:
                await asyncio.wait(calls, timeout=CLEANUP_GRACE_S)
                is_late = bool(calls)
        finally:  # also when cancelled
            if is_late:
                task = asyncio.ensure_future(self._clean_up_later(state, calls))
                self._pending_cleanups.add(task)
                task.add_done_callback(self._pending_cleanups.discard)
        if not is_late:
            await super().clean_up(state)

    async def _clean_up_later(self, state: State, calls: PendingCalls) -> None:
        while calls:
            await asyncio.wait(calls)
        try:
            await super().clean_up(state)
        except BaseException as error:  # too late for the record
            if ends_task(error):
                raise
            warnings.warn(f"a postponed cleanup failed: {type(error).__name__}: {error}", stacklevel=1)

    async def tear_down(self) -> None:
        """Wait up to `CLEANUP_GRACE_S` for postponed cleanups, then tear down as `Environment.tear_down` does."""
        if self._pending_cleanups:
            _, waiting = await asyncio.wait(self._pending_cleanups, timeout=CLEANUP_GRACE_S)
            if waiting:
                warnings.warn(
                    f"sync tools of {len(waiting)} rollout(s) have not returned, so their cleanups did not run; add a time limit "
                    "to what the tools wait for",
                    stacklevel=1,
                )
        await super().tear_down()

    @stop
    def no_tools_called(self, state: State) -> bool:
        """Stop when the model answers without a tool call, unless its text contains a call; `env_response` then reports this."""
        steps = bookkeeping(state).trajectory
        if not steps:
            return False
        reply = steps[-1].completion[-1]
        if reply.get("tool_calls") or self._left_call(state):
            return False
        return steps[-1].finish_reason == "length" or not unparsed_call_format(text_of(reply))

    def _left_call(self, state: State) -> str | None:
        """Return the name of a tool whose call the endpoint left in the text of the last reply.

        Return None if the reply's tokens are recorded: calls in the model's own format were then parsed already, so a call in
        another format is the model's mistake.
        """
        steps = bookkeeping(state).trajectory
        if not steps or steps[-1].tokens is not None:
            return None
        reply = steps[-1].completion[-1]
        tools = [call_name(definition) or "" for definition in state.get("tools") or ()]
        return None if reply.get("tool_calls") else call_left_in(text_of(reply), tools)

    def _check_no_left_call(self, text: str, call_format: Format | None, state: State) -> None:
        """Raise ToolParseError if the endpoint left a call in the text of a reply."""
        steps = bookkeeping(state).trajectory
        left_call = self._left_call(state)
        if left_call is None and call_format is not None and steps and steps[-1].tokens is None:
            _, calls = read_calls(text, call_format, self._tools_by_name)
            left_call = call_name(calls[0]) if calls else None
        if left_call is not None:
            raise ToolParseError(
                f"the reply has a call of '{left_call}' in its text but no tool_calls: the server does not parse tool calls of "
                "this model. Enable the parser of the model (vLLM: --enable-auto-tool-choice --tool-call-parser …); a scripted "
                "policy returns AssistantMessage(None, tool_calls=[…])"
            )

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Return one tool message per call, in order; one user message if the calls cannot be parsed.

        Raises:
            ToolParseError: the calls are not a list, or the server left them in the text; or they cannot be parsed
                and `stop_errors` includes this.
            ToolError: a call failed with an error in `stop_errors`; parallel calls all finish first.
        """
        calls = cast(object, messages[-1].get("tool_calls") or [])
        if not is_list(calls):
            raise ToolParseError(f"tool_calls is {type(calls).__name__}; expected a list of calls")
        text = text_of(messages[-1])
        call_format = None if calls else unparsed_call_format(text)
        self._check_no_left_call(text, call_format, state)
        if call_format is not None:
            example = call_format.write([Call("name", {"argument": "value"})])
            error = ToolParseError(f"the tool call cannot be read; write the complete call, for example: {example}")
            # A user message, because a tool message needs the id of a call.
            return [UserMessage(self._error_message(error, error, ToolParseError, "")["content"])]
        if not self.parallel_calls or len(calls) < 2:
            return [await self._answer(call, messages, state) for call in calls]
        # A failure waits for the other calls: none may still run when the rollout cleans up.
        answers = await asyncio.gather(*(self._attempt(call, messages, state) for call in calls))
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, Message)]

    async def call_tool(self, tool_name: str, tool_args: Arguments, tool_call_id: str, **kwargs: Any) -> Message:
        """Call a tool with checked arguments; raise the tool's exceptions unchanged.

        Raises:
            ToolParseError: there is no such tool.
        """
        self._tool(tool_name)
        result = await self._result(self.tool_map[tool_name], tool_args)
        return ToolMessage(as_content(result), tool_call_id)

    async def _result(self, func: ToolFunction, arguments: Arguments) -> object:
        # In a thread however short the tool is: a tool that blocks the event loop stops all rollouts
        # (docs/decisions/tools.md has the costs).
        if self._threads is None or is_async(func):
            return await maybe_await(func(**arguments))
        call = functools.partial(func, **arguments)
        return await maybe_await(await self._in_thread(self._threads, call, _sync_calls.get()))

    async def _in_thread(self, threads: Threads, call: Callable[[], object], under_way: PendingCalls | None) -> object:
        return await threads.run(call, under_way)

    async def _attempt(self, call: object, messages: Messages, state: State) -> Message | BaseException:
        try:
            return await self._answer(call, messages, state)
        except BaseException as error:
            if ends_task(error):
                raise
            return error

    async def _answer(self, call: object, messages: Messages, state: State) -> Message:
        # Some servers give no id, or one id to several calls; models do not choose ids, so this is no error of theirs.
        id = call_id(call)
        try:
            tool = self._tool(call_name(call), state)
            arguments = tool.read(call_arguments(call))
        except ToolParseError as error:
            return self._error_message(error, error.__cause__ or error, ToolParseError, id)
        arguments = await self._prepared(tool, arguments, messages, state)
        with phase(f"tool {tool.name}"):
            try:
                return as_message(await self.call_tool(tool.name, arguments, id), role="tool")
            except (InfraError, LimitReachedError):  # a sandbox that is down is no mistake of the model
                raise
            except BaseException as error:
                if ends_task(error):
                    raise
                return self._error_message(_as_exception(error), error, ToolCallError, id)

    async def _prepared(self, tool: Tool, arguments: Arguments, messages: Messages, state: State) -> Arguments:
        return arguments

    def _tool(self, name: str | None, state: State | None = None) -> Tool:
        """Return a tool by name, among those in `state["tools"]` if there is a state."""
        if name is None:
            raise ToolParseError(
                'a tool call names no function; expected {"function": {"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}}'
            )
        tools = self._tools_by_name
        if state is not None and bookkeeping(state).reads_tools:
            offered = set(map(call_name, offered_tools(state) or ()))
            tools = {tool_name: tool for tool_name, tool in tools.items() if tool_name in offered}
        if name not in tools:
            short_name = name[:QUOTED]
            raise ToolParseError(f"there is no tool '{short_name}'; {nearest(short_name, tools)}")
        return tools[name]

    def _error_message(self, error: Exception, cause: BaseException, kind: type[ToolError], id: str) -> ToolMessage:
        """Return the message that reports an error to the model; raise it if it is in `stop_errors`."""
        if isinstance(error, self.stop_errors) or isinstance(cause, self.stop_errors):
            if isinstance(error, kind):
                raise error
            raise kind(f"{type(error).__name__}: {error}") from error
        return ToolMessage(self.error_formatter(error) or repr(error), id)


class StatefulToolEnv(ToolEnv):
    """A `ToolEnv` with tool arguments that the model does not see; `update_tool_args` sets them for every call.

    Open resources in `setup_state`, keep them in the state, and close them in a `@cleanup` method. Tools added with
    `add_tool` may hide arguments; tools in `tools` cannot. Sync tools of one rollout run one at a time, because they
    share its resources.

    See `ToolEnv` for arguments.

    Example:
        class Database(rove.StatefulToolEnv):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                self.add_tool(query, args_to_skip=["connection"])  # def query(sql: str, connection: Connection) -> list

            async def setup_state(self, state, **kwargs):
                state["connection"] = sqlite3.connect(":memory:", check_same_thread=False)

            def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
                return {**tool_args, "connection": state["connection"]}
    """

    def add_tool(self, tool: ToolFunction | Tool, args_to_skip: Iterable[str] = ()) -> None:
        """Add a tool and hide some of its arguments from the model.

        Args:
            tool: a function.
            args_to_skip: arguments that `update_tool_args` sets.

        Raises:
            ConfigError: the function cannot be a tool or has no such argument, or there is already a tool of this name.
        """
        self._add(make_tool(tool, hidden=args_to_skip))

    @abstractmethod
    def update_tool_args(
        self, tool_name: str, tool_args: Arguments, messages: Messages, state: State, **kwargs: Any
    ) -> Any:
        """Return the arguments for a call: the model's arguments, checked and converted, and the hidden arguments.

        This method may be async. Its exceptions make the rollout fail and are not reported to the model.
        """

    async def _prepared(self, tool: Tool, arguments: Arguments, messages: Messages, state: State) -> Arguments:
        # Code of the environment, so its exceptions end the rollout and are not reported as the model's mistakes.
        with phase("update_tool_args"):
            updated = await maybe_await(self.update_tool_args(tool.name, arguments, messages, state))
            if not is_mapping(updated):
                raise ConfigError(
                    f"update_tool_args returned {type(updated).__name__} for '{tool.name}'; expected a dict, the arguments"
                )
            tool.check_call(updated)
            return dict(updated)

    async def _in_thread(self, threads: Threads, call: Callable[[], object], under_way: PendingCalls | None) -> object:
        # One at a time: two threads that run `state["n"] += 1` can lose an update (docs/decisions/tools.md).
        while under_way:  # the first task to resume registers its call, so the others wait again
            await asyncio.wait(under_way)
        return await super()._in_thread(threads, call, under_way)


def example_value(schema: JsonMapping) -> object:
    """Return a small value that fits a JSON schema."""
    for name in ("default", "const"):
        if name in schema:
            return schema[name]
    for name in ("enum", "examples"):
        if schema.get(name):
            return schema[name][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return example_value(schema[name][0])
    kinds: Any = schema.get("type")
    kind = kinds[0] if is_list(kinds) and kinds else str(kinds)
    if kind == "object":
        properties: JsonMapping = schema.get("properties") or {}
        needed: Sequence[str] = schema.get("required", list(properties))
        return {name: example_value(properties[name]) for name in needed if name in properties}
    if kind == "array":
        return [example_value(schema.get("items") or {})] if schema.get("minItems") else []
    return {"integer": 1, "number": 1.0, "boolean": True, "null": None}.get(kind, "a")


def example_call(tool: JsonMapping, call_id: str) -> JsonObject:
    """Return a call of a tool in OpenAI's form, with arguments that fit its schema."""
    function = tool["function"]
    arguments = json.dumps(example_value(function.get("parameters") or {"type": "object"}))
    return {"id": call_id, "type": "function", "function": {"name": function["name"], "arguments": arguments}}
