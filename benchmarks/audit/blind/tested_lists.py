"""List functions: write a small Python function that passes hidden tests."""

from __future__ import annotations

import functools
import json
import random
import re
import subprocess
import sys
import tempfile
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Write the Python function. Put the complete code into one ```python block."
TIME_LIMIT = 5.0
FAMILIES = [
    ("the sum of the elements greater than {k}", "sum(x for x in xs if x > {k})"),
    ("how many elements are divisible by {k}", "sum(x % {k} == 0 for x in xs)"),
    ("the list with {k} added to every element", "[x + {k} for x in xs]"),
    ("the list without the elements smaller than {k}", "[x for x in xs if x >= {k}]"),
    ("the list of remainders of the elements after division by {k}", "[x % {k} for x in xs]"),
    ("the largest element not above {k}, or -1 if there is none", "max((x for x in xs if x <= {k}), default=-1)"),
    ("the sorted list of the distinct elements, each multiplied by {k}", "sorted({{x * {k} for x in xs}})"),
    ("the list with every element above {k} replaced by {k}", "[min(x, {k}) for x in xs]"),
]


def code_of(text: str) -> str | None:
    """Return the last Python block."""
    blocks = re.findall(r"```(?:python|py)?[ \t]*\n(.*?)```", text, re.DOTALL)
    return blocks[-1] if blocks else None


@functools.lru_cache(maxsize=4096)
def run_tests(code: str, tests: str) -> bool:
    """Run the code and then its tests in a fresh interpreter; return whether it finished without an error."""
    program = f"{code}\n\nimport json\n{tests}\n"
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-"],
                input=program.encode("utf-8", "replace"),
                capture_output=True,
                timeout=TIME_LIMIT,
                cwd=folder,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


def passes(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return 1 if the function passes all tests."""
    code = code_of(completion[-1].content or "")
    return float(code is not None and run_tests(code, info["tests"]))


def coder(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Write the reference solution."""
    return f"```python\ndef {state['info']['name']}(xs):\n    return {state['answer']}\n```"


def echo(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Return the argument."""
    return f"```python\ndef {state['info']['name']}(xs):\n    return xs\n```"


def _expected(expression: str, xs: list[int]) -> str:
    return json.dumps(eval(expression, {"xs": xs}))


def _row(family: int, k: int, seed: str) -> dict[str, Any]:
    rng = random.Random(f"{seed}:{family}:{k}")
    text, expression = (part.format(k=k) for part in FAMILIES[family])
    name = f"solve_{family}_{k}"
    lists = [[rng.randint(0, 60) for _ in range(rng.randint(4, 9))] for _ in range(6)]
    tests = [f"assert json.dumps({name}({xs})) == {_expected(expression, xs)!r}" for xs in lists[1:]]
    example = f"{name}({lists[0]}) == {_expected(expression, lists[0])}"
    question = f"Write a function {name}(xs) that takes a list of integers and returns {text}.\nExample: {example}"
    return {"question": question, "answer": expression, "info": {"name": name, "tests": "\n".join(tests)}}


def _rows(seed: int, evaluation: bool) -> list[dict[str, Any]]:
    values = [k for k in range(3, 36) if (k % 4 == 0) == evaluation]
    rows = [_row(family, k, str(seed)) for family in range(len(FAMILIES)) for k in values]
    random.Random(f"{seed}:{evaluation}").shuffle(rows)
    return rows


def load_environment(seed: int = 0) -> vf.Environment:
    """Return an environment in which the model writes functions on lists.

    Args:
        seed: Random seed of the tests and of the order of the rows.
    """
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(seed, False),
        eval_dataset=lambda: _rows(seed, True),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([passes]),
        policies={"coder": coder, "echo": echo},
    )
