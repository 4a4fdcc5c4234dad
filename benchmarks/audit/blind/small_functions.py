"""Small functions: write a Python function that passes a few tests."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Write the Python function in a code block. Only the standard library is available."
TIMEOUT_SECONDS = 5
TEMPLATES = [
    ("the sum of all numbers in `xs` that are divisible by {k}", "sum(x for x in xs if x % {k} == 0)"),
    ("the list of all numbers in `xs` that are larger than {k}", "[x for x in xs if x > {k}]"),
    ("how many numbers in `xs` are smaller than {k}", "len([x for x in xs if x < {k}])"),
    ("`xs` with {k} added to each number", "[x + {k} for x in xs]"),
    ("every {k}th element of `xs`, starting with the first", "xs[::{k}]"),
    ("`xs` sorted by the remainder of each number after division by {k}", "sorted(xs, key=lambda x: x % {k})"),
    ("the sum of the {k} largest numbers in `xs`", "sum(sorted(xs)[-{k}:])"),
    ("`xs` rotated to the left by {k} places", "xs[{k} % max(1, len(xs)):] + xs[:{k} % max(1, len(xs))]"),
    ("the largest product of a number in `xs` and {k}, or 0 if `xs` is empty", "max([x * {k} for x in xs], default=0)"),
    (
        "the different remainders of the numbers in `xs` after division by {k}, in ascending order",
        "sorted(set(x % {k} for x in xs))",
    ),
]
FENCE = re.compile(r"```(?:python|py)?\s*\n(.*?)```", re.S)


def extract_code(text: str) -> str | None:
    """Return the last code block of a text."""
    blocks = FENCE.findall(text)
    return blocks[-1] if blocks else None


def run_tests(code: str, tests: list[str]) -> bool:
    """Run the code and its tests in a new interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", "\n".join([code, *tests])],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT_SECONDS,
            )
        except (subprocess.TimeoutExpired, ValueError):
            return False
    return done.returncode == 0


def passes(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return 1 if all tests pass."""
    code = extract_code(str(completion[-1].content or ""))
    return float(code is not None and run_tests(code, info["tests"]))


def has_code(completion: vf.Messages) -> float:
    """Return 1 if the reply has a code block."""
    return float(extract_code(str(completion[-1].content or "")) is not None)


def reference(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Write the reference solution."""
    return f"```python\n{state['answer']}\n```"


def stub(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Write a function that returns its argument."""
    return "```python\ndef solve(xs):\n    return xs\n```"


def _row(template: int, k: int, rng: random.Random) -> dict[str, Any]:
    text, expression = (part.format(k=k) for part in TEMPLATES[template])
    function = eval(f"lambda xs: {expression}")
    tests = []
    for size in (0, 1, 5, 9, 14):
        xs = [rng.randint(-30, 60) for _ in range(size)]
        tests.append(f"assert solve({xs}) == {function(xs)!r}")
    return {
        "question": f"Write `solve(xs)`, which gets a list of integers and returns {text}. For example: {tests[2][7:]}",
        "answer": f"def solve(xs):\n    return {expression}",
        "info": {"tests": tests},
    }


def _rows(count: int, seed: int, part: str) -> list[dict[str, Any]]:
    every = [(template, k) for template in range(len(TEMPLATES)) for k in range(2, 20)]
    random.Random("functions").shuffle(every)
    chosen = every[:110] if part == "train" else every[110:]
    rng = random.Random(f"{seed}:{part}")
    return [_row(template, k, rng) for template, k in rng.sample(chosen, min(count, len(chosen)))]


def load_environment(num_examples: int = 110, seed: int = 0) -> vf.Environment:
    """Return an environment with small programming tasks about lists.

    Args:
        num_examples: Number of tasks, at most 110 for training and 70 for evaluation.
        seed: Random seed of the selection and of the tests.
    """
    rubric = vf.Rubric([passes])
    rubric.add_metric(has_code)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, seed, "train"),
        eval_dataset=lambda: _rows(num_examples, seed, "eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"reference": reference, "stub": stub},
    )
