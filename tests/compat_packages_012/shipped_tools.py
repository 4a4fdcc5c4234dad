"""The tools that the library shipped: a calculator and a Python cell."""

import verifiers as vf
from datasets import Dataset
from verifiers.utils.tools import calculator, python


def said(completion, answer, **kwargs) -> float:
    tools = [m["content"] for m in completion if m["role"] == "tool"]
    return float(bool(tools) and tools[-1] == answer)


def load_environment(**kwargs) -> vf.Environment:
    rows = [
        {"question": "Calculate 3 * (17 + 4).", "answer": "63"},
        {"question": "Calculate import os.", "answer": "Error: Invalid characters in expression"},
        {"question": "Calculate 1 / 0.", "answer": "Error: division by zero"},
        {"question": "Run a cell.", "answer": "(3, 4)"},
    ]
    rubric = vf.Rubric(funcs=[said])
    return vf.ToolEnv(dataset=Dataset.from_list(rows), tools=[calculator, python], rubric=rubric)
