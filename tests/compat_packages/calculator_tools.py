"""Typed functions as tools; errors are told to the model."""

import json
from typing import Literal

import verifiers as vf
from datasets import Dataset


def calculate(a: float, b: float, operation: Literal["add", "multiply", "divide"] = "add") -> str:
    """Calculate with two numbers.

    Args:
        a: the first number
        b: the second number
        operation: what to do with them

    Returns:
        The result as text.
    """
    return str({"add": lambda: a + b, "multiply": lambda: a * b, "divide": lambda: a / b}[operation]())


async def look_up(names: list[str], limit: int | None = None) -> dict:
    """Look constants up."""
    known = {"pi": 3.14, "e": 2.72, "answer": 42}
    return {name: known[name] for name in names[:limit]}


def load_environment(max_turns: int = 4, **kwargs):
    def correct(completion, answer):
        return float(answer in (completion[-1]["content"] or ""))

    def asked_twice(completion):
        calls = [call for m in completion if m["role"] == "assistant" for call in m.get("tool_calls") or []]
        read = [json.loads(call.arguments) for call in calls if call.arguments.startswith("{")]
        return float(len(read) > 1)

    rows = [
        {"question": "What is 2 times 21?", "answer": "42"},
        {"question": "What is pi?", "answer": "3.14"},
        {"question": "Divide 1 by 0.", "answer": "undefined"},
        {"question": "Call what is not there.", "answer": "sorry"},
        {"question": "Just talk.", "answer": "hello"},
        {"question": "Never stop.", "answer": "never"},
    ]
    return vf.ToolEnv(
        dataset=Dataset.from_list(rows),
        tools=[calculate, look_up],
        rubric=vf.Rubric(funcs=[correct, asked_twice], weights=[1.0, 0.1]),
        max_turns=max_turns,
        error_formatter=lambda error: f"Error: {type(error).__name__}",
        **kwargs,
    )
