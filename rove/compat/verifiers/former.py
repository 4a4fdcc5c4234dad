"""Classes that the library once had and packages still name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rove.compat.verifiers.messages import Messages
from rove.compat.verifiers.mode import outdated
from rove.compat.verifiers.multiturn import MultiTurnEnv
from rove.compat.verifiers.parsers import Parser
from rove.compat.verifiers.tools import ToolMonitorRubric
from rove.compat.verifiers.types import State


class ToolRubric(ToolMonitorRubric):
    """Metrics of tool calls, beside reward functions; from 0.1.9 every `ToolEnv` has them by itself."""

    def __init__(
        self,
        tools: list[Callable[..., Any]] | None = None,
        funcs: list[Callable[..., Any]] | None = None,
        weights: list[float] | None = None,
        parser: Parser | None = None,
        **ignored: Any,
    ):
        outdated("ToolRubric", "use Rubric: a ToolEnv counts calls by itself")
        super().__init__(funcs=list(funcs or []), weights=list(weights or []), parser=parser)
        for tool in tools or ():
            self.add_tool_metric(getattr(tool, "__name__", type(tool).__name__))


class MultiTurnCompletionEnv(MultiTurnEnv):
    """A `MultiTurnEnv` on raw texts."""

    def __init__(self, **kwargs: Any):
        super().__init__(message_type="completion", **kwargs)


class DoubleCheckEnv(MultiTurnEnv):
    """Asks back once whether the model is sure."""

    def __init__(self, question: str = "Are you sure?", max_turns: int = 2, **kwargs: Any):
        outdated("DoubleCheckEnv", "write a MultiTurnEnv, as the example environment double_check is one")
        super().__init__(max_turns=max_turns, **kwargs)
        self.question = question

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """The question."""
        return [{"role": "user", "content": self.question}]
