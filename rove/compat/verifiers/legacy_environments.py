"""Classes and example tools of older releases that 0.3.1 no longer has."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from rove.compat.verifiers.messages import Messages
from rove.compat.verifiers.multiturn import MultiTurnEnv
from rove.compat.verifiers.parsers import Parser
from rove.compat.verifiers.release import outdated
from rove.compat.verifiers.rubrics import MathRubric
from rove.compat.verifiers.sandbox import PythonEnv
from rove.compat.verifiers.tools import ToolEnv, ToolMonitorRubric
from rove.compat.verifiers.types import State, Tool
from rove.envs.smolagents import as_tool


class ToolRubric(ToolMonitorRubric):
    """Tool call metrics in addition to reward functions; from 0.1.9 every `ToolEnv` has them."""

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
    """A `MultiTurnEnv` for raw text."""

    def __init__(self, **kwargs: Any):
        super().__init__(message_type="completion", **kwargs)


class DoubleCheckEnv(MultiTurnEnv):
    """Asks the model once whether it is sure."""

    def __init__(self, question: str = "Are you sure?", max_turns: int = 2, **kwargs: Any):
        outdated("DoubleCheckEnv", "write a MultiTurnEnv, as the example environment double_check is one")
        super().__init__(max_turns=max_turns, **kwargs)
        self.question = question

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Return the question."""
        return [{"role": "user", "content": self.question}]


class SmolaToolRubric(ToolRubric):
    """`ToolRubric` for `SmolaToolEnv`."""


class SmolaToolEnv(ToolEnv):
    """A `ToolEnv` with tools of smolagents; until 0.1.1 models called them with tags in the text.

    Args:
        tools: `smolagents.Tool`s, or functions.
        max_steps: maximum model turns.
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
        """Add a tool."""
        definition = as_tool(tool)
        if definition is tool:
            return super().add_tool(tool)

        def call(**arguments: Any) -> Any:
            return tool(**arguments)

        # The tool's own schema: one that is made from the signature of `call` would have no arguments.
        call.__name__, call.__doc__ = definition.name, definition.description
        self._register(
            call, Tool(name=definition.name, description=definition.description, parameters=definition.parameters)
        )


class CodeMathRubric(MathRubric):
    """`MathRubric` for `CodeMathEnv`."""


class CodeMathEnv(PythonEnv):
    """Mathematical questions with a Python tool; until 0.1.1 the code was in tags of the text.

    Args:
        max_turns: maximum model turns.
        Everything else: see `PythonEnv`.
    """

    def __init__(self, rubric: Any = None, max_turns: int = 5, **kwargs: Any):
        outdated("CodeMathEnv", "use PythonEnv with a MathRubric, or rove.CodeMathEnv")
        rubric = CodeMathRubric() if rubric is None else rubric
        super().__init__(rubric=rubric, max_turns=max_turns, **kwargs)


class CodeEnv(CodeMathEnv):
    """`CodeMathEnv` under the name that README of 0.1.0 gives it."""


_CODE_TIMEOUT_S = 10
_MAX_OUTPUT_CHARS = 1000
_MAX_PAGE_CHARS = 50_000

# The docstrings and replies of the following tools are what models read in v0 ("No results results" included): other
# texts could change scores.


def calculator(expression: str) -> str:
    """Evaluates a single line of Python math expression. No imports or variables allowed.

    Args:
        expression (str): A mathematical expression using only numbers and basic operators (+,-,*,/,**,())

    Returns:
        The result of the calculation or an error message

    Examples:
        "2 + 2" -> "4"
        "3 * (17 + 4)" -> "63"
        "100 / 5" -> "20.0"
    """
    if not set(expression) <= set("0123456789+-*/.() "):
        return "Error: Invalid characters in expression"
    # In its own process, because 9**9**9 would block every rollout; v0 evaluates it in the main process.
    code = f"print(eval({expression!r}, {{'__builtins__': {{}}}}, {{}}))"
    output, error, timed_out = _run(code)
    if timed_out:
        return f"Error: calculation timed out after {_CODE_TIMEOUT_S} seconds"
    if error:
        message = error.strip().splitlines()[-1]
        return f"Error: {message.split(': ', 1)[-1]}"
    return output.strip()


def python(code: str) -> str:
    """Evaluates Python code like a Jupyter notebook cell, returning output and/or the last expression value.

    Args:
        code (str): A block of Python code

    Returns:
        The output (stdout + last expression if not None) or error message

    Examples:
        {"code": "import numpy as np\\nnp.array([1, 2, 3]) + np.array([4, 5, 6])"} -> "[5 7 9]"
        {"code": "x = 5\\ny = 10\\nx + y"} -> "15"
        {"code": "a, b = 3, 4\\na, b"} -> "(3, 4)"
    """
    output, error, timed_out = _run(_print_last_expression(code))
    if timed_out:
        return f"Error: Code execution timed out after {_CODE_TIMEOUT_S} seconds"
    return error.strip()[:_MAX_OUTPUT_CHARS] or output.strip()[:_MAX_OUTPUT_CHARS]


def _run(code: str) -> tuple[str, str, bool]:
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},  # otherwise cp1252 on Windows
            timeout=_CODE_TIMEOUT_S,
            encoding="utf-8",
            capture_output=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", "", True
    return done.stdout, done.stderr, False


def _print_last_expression(code: str) -> str:
    code = textwrap.dedent(code)
    tree = ast.parse(code, mode="exec")
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return code
    value = ast.unparse(tree.body[-1].value)
    del tree.body[-1]
    return f"{ast.unparse(tree)}\n_ = {value}\nif _ is not None: print(_)"


def ask(question: str, url: str) -> str:
    """Ask a question about a web page returned from search results.

    Args:
        question: The question to be answered (by an LLM who will be given the web page contents)
        url: The URL of the web page to query

    Returns:
        A LLM-generated answer to the question based on the web page contents.

    Examples:
        {"question": "What is the capital of France?", "url": "https://en.wikipedia.org/wiki/France"} -> "The capital of France is Paris."
        {"question": "How many people live in the United States?", "url": "https://en.wikipedia.org/wiki/United_States"} -> "The population of the United States is approximately 340 million people."
    """  # noqa: E501
    page = _page(url)[:_MAX_PAGE_CHARS]
    if page.startswith("Error:"):
        return "Error: Failed to fetch URL contents."
    prompt = f"Answer the following question based on the provided web page contents:\n\nQuestion: {question}\n\n"
    prompt += f"Page: {url}\n\nPage contents:\n{page}\n"
    try:
        client = importlib.import_module("openai").OpenAI(
            base_url="https://api.deepinfra.com/v1/openai", api_key=os.getenv("DEEPINFRA_API_KEY")
        )
        reply = client.chat.completions.create(
            model="Qwen/Qwen2.5-7B-Instruct", messages=[{"role": "user", "content": prompt}], max_tokens=4000
        )
        return reply.choices[0].message.content or "Error: No response from model."
    except Exception as error:
        return f"Error: {error}"


def _page(url: str) -> str:
    try:
        response = importlib.import_module("requests").get(url, timeout=30)
        response.raise_for_status()
        return importlib.import_module("markdownify").markdownify(response.text)
    except Exception as error:
        return f"Error: {error}"


def search_ddg(query: str, num_results: int = 5) -> str:
    """Searches DuckDuckGo and returns concise summaries of top results.

    Args:
        query (str): The search query string
        num_results (int): Number of results to return (default: 5, max: 10)

    Returns:
        Formatted string with bullet points of top results, each with title and brief summary

    Examples:
        {"query": "who invented the lightbulb", "num_results": 3}
    """
    try:
        with importlib.import_module("duckduckgo_search").DDGS() as engine:
            results = list(engine.text(query, max_results=min(num_results, 10)))
    except Exception as error:
        return f"Error: {error}"
    lines: list[str] = []
    for result in results:
        summary = result["body"][:200].rsplit(".", 1)[0]  # up to the last complete sentence
        lines.append(f"• {result['title']}\n  {summary}.")
    return "\n\n".join(lines) or "No results results"


def search(query: str) -> str:
    """Searches the web and returns summaries of top results.

    Args:
        query: The search query string

    Returns:
        Formatted string with bullet points of top 3 results, each with title, source, url, and brief summary

    Examples:
        {"query": "who invented the lightbulb"} -> ["Thomas Edison (1847-1931) - Inventor of the lightbulb", ...]
        {"query": "what is the capital of France"} -> ["Paris is the capital of France", ...]
        {"query": "when was the Declaration of Independence signed"} -> ["The Declaration of Independence was signed on July 4, 1776", ...]
    """  # noqa: E501
    try:
        engine = importlib.import_module("brave").Brave()
        results = engine.search(q=query, count=10, raw=True).get("web", {}).get("results", [])
    except Exception as error:
        return f"Error: {error}"
    lines: list[str] = []
    for result in results:
        if "profile" in result:
            profile = result["profile"]
            lines.append(
                f"•  {profile['name']} ({profile['long_name']})\n   {result['title']}\n"
                f"   {result['description'][:300]} ...\n   {result['url']}"
            )
    return "\n\n".join(lines[:3]) or "No results results"
