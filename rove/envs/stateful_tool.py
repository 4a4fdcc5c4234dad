"""Environments whose tools need what the model must not give: a connection, a sandbox, the answer."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rove.core.errors import ConfigError, phase
from rove.core.messages import Messages
from rove.core.state import State
from rove.envs.tool import ToolEnv
from rove.tools.tool import Arguments, Tool, make_tool
from rove.utils.functions import maybe_await
from rove.utils.threads import Threads, UnderWay


class StatefulToolEnv(ToolEnv):
    """A `ToolEnv` whose tools have arguments hidden from the model, which `update_tool_args` puts in for every call.

    What a rollout needs is opened in `setup_state`, kept in the state and closed in a method marked with `@cleanup`, which
    runs whatever happens in the rollout. Tools added with `add_tool` may hide arguments; those given as `tools` hide none.
    What they share they share within a rollout, whose sync tools therefore run one at a time, beside those of other rollouts.
    Arguments: see `ToolEnv`.
    """

    def add_tool(self, tool: Callable[..., Any] | Tool, args_to_skip: Iterable[str] = ()) -> None:
        """Give the model one more tool, of which it is told without some arguments.

        Args:
            tool: a function.
            args_to_skip: names of the arguments that `update_tool_args` gives.

        Raises:
            ConfigError: it cannot be a tool, has no such argument, or there is one of its name.
        """
        self._add(make_tool(tool, hidden=args_to_skip))

    @abstractmethod
    def update_tool_args(
        self, tool_name: str, tool_args: Arguments, messages: Messages, state: State, **kwargs: Any
    ) -> Any:
        """The arguments to call a tool with: those the model gave, checked and converted, and those hidden from it.

        May be async. What it raises is an error of the rollout and not told to the model.
        """

    async def _prepared(self, tool: Tool, arguments: Arguments, messages: Messages, state: State) -> Arguments:
        with phase("update_tool_args"):
            updated = await maybe_await(self.update_tool_args(tool.name, arguments, messages, state))
            if not isinstance(updated, Mapping):
                raise ConfigError(
                    f"update_tool_args returned {type(updated).__name__} for '{tool.name}'; expected a dict, the arguments"
                )
            tool.check_call(updated)
            return dict(updated)

    async def _in_thread(self, threads: Threads, call: Callable[[], Any], under_way: UnderWay | None) -> Any:
        while under_way:  # whoever goes on first is the next: the others find it under way
            await asyncio.wait(under_way)
        return await super()._in_thread(threads, call, under_way)
