"""Classes that the library once had and packages still name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rove.compat.verifiers.mathematics import MathRubric
from rove.compat.verifiers.messages import Messages
from rove.compat.verifiers.mode import outdated
from rove.compat.verifiers.multiturn import MultiTurnEnv
from rove.compat.verifiers.parsers import Parser
from rove.compat.verifiers.sandbox import PythonEnv
from rove.compat.verifiers.tools import ToolEnv, ToolMonitorRubric
from rove.compat.verifiers.types import State, Tool
from rove.envs.smola import as_tool


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
        self.tools = list(tools or [])
        for tool in self.tools:
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


class SmolaToolRubric(ToolRubric):
    """`ToolRubric` for `SmolaToolEnv`."""


class SmolaToolEnv(ToolEnv):
    """A `ToolEnv` whose tools may be those of smolagents; until 0.1.1 they were called by tags in the text.

    Args:
        tools: `smolagents.Tool`s, or functions.
        max_steps: most model turns.
        Everything else: see `ToolEnv`.
    """

    def __init__(self, tools: list[Any] | None = None, max_steps: int = 10, **kwargs: Any):
        outdated(
            "SmolaToolEnv", "use ToolEnv, whose tools are called by the model's own tool calls, or rove.SmolaToolEnv"
        )
        kwargs.pop("mask_env_response", None)
        super().__init__(max_turns=kwargs.pop("max_turns", max_steps), **kwargs)
        for tool in tools or ():
            self.add_tool(tool)

    def add_tool(self, tool: Any) -> None:
        """Give the model one more tool."""
        told = as_tool(tool)
        if told is tool:
            return super().add_tool(tool)

        def called(**arguments: Any) -> Any:
            return tool(**arguments)

        called.__name__, called.__doc__ = told.name, told.description
        self._add(called, Tool(name=told.name, description=told.description, parameters=told.parameters))


class CodeMathRubric(MathRubric):
    """`MathRubric` for `CodeMathEnv`."""


class CodeMathEnv(PythonEnv):
    """Questions of mathematics with a Python; until 0.1.1 its code stood in tags of the text, now it is a tool.

    Args:
        max_turns: most model turns.
        Everything else: see `PythonEnv`.
    """

    def __init__(self, rubric: Any = None, max_turns: int = 5, **kwargs: Any):
        outdated("CodeMathEnv", "use PythonEnv with a MathRubric, or rove.CodeMathEnv")
        rubric = CodeMathRubric() if rubric is None else rubric
        super().__init__(rubric=rubric, max_turns=max_turns, **kwargs)
