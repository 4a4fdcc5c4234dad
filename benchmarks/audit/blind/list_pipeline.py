"""List pipeline: write a small Python function for lists of integers; hidden tests run it."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Write the Python function that the task describes. Reply with one ```python code block and nothing else."
)
KEEP = {
    "the even numbers": "x % 2 == 0",
    "the odd numbers": "x % 2 == 1",
    "the positive numbers": "x > 0",
    "the negative numbers": "x < 0",
    "the numbers divisible by three": "x % 3 == 0",
    "the numbers below ten": "x < 10",
}
CHANGE = {
    "square each": "x * x",
    "double each": "2 * x",
    "negate each": "-x",
    "add seven to each": "x + 7",
    "halve each, rounded down": "x // 2",
}
FINISH = {
    "return their sum": "sum(ys)",
    "return how many distinct values there are": "len(set(ys))",
    "return the values in ascending order": "sorted(ys)",
    "return the largest, or 0 if there is none": "max(ys, default=0)",
    "return the values in reverse order": "ys[::-1]",
}
BLOCK = re.compile(r"```(?:python|py)?\s*\n(.*?)```", re.DOTALL)
SPECS = [(keep, change, finish) for keep in KEEP for change in CHANGE for finish in FINISH]
random.Random("specs").shuffle(SPECS)
HELD_OUT, TRAINED = SPECS[:60], SPECS[60:]


def reference(spec: tuple[str, str, str]) -> str:
    """Return the source of a correct function."""
    keep, change, finish = spec
    return f"def solve(xs):\n    ys = [{CHANGE[change]} for x in xs if {KEEP[keep]}]\n    return {FINISH[finish]}\n"


def make_row(spec: tuple[str, str, str], rng: random.Random) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(reference(spec), scope)
    tests = []
    for size in (0, 1, 3, 6, 9, 12):
        xs = [rng.randint(-30, 30) for _ in range(size)]
        tests.append([xs, json.dumps(scope["solve"](list(xs)))])
    keep, change, finish = spec
    question = f"Write solve(xs): take {keep} of the list xs, {change}, and {finish}."
    return {"question": question, "info": {"spec": list(spec), "tests": tests}}


def rows(specs: list[tuple[str, str, str]], count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(spec, random.Random(f"{seed}/{index}")) for index, spec in enumerate(specs[:count])]


def program(code: str, tests: list[Any]) -> str:
    """Return a script that runs the tests after the code."""
    checks = [f"assert json.dumps(solve({xs!r})) == {expected!r}" for xs, expected in tests]
    return "\n".join(["import json", code, *checks])


def run_tests(code: str, tests: list[Any], seconds: float = 5.0) -> bool:
    command = [sys.executable, "-I", "-c", program(code, tests)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, env={}, stdin=subprocess.DEVNULL)
    except (subprocess.TimeoutExpired, ValueError):
        return False
    return done.returncode == 0


async def tests_pass(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return 1 if the function passes all hidden tests."""
    blocks = BLOCK.findall(str(completion[-1]["content"] or ""))
    if not blocks:
        return 0.0
    return float(await asyncio.to_thread(run_tests, blocks[-1], info["tests"]))


def engineer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Write the reference function."""
    return f"```python\n{reference(tuple(state['info']['spec']))}```"


def beginner(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Forget to filter the list."""
    _, change, finish = state["info"]["spec"]
    return f"```python\ndef solve(xs):\n    ys = [{CHANGE[change]} for x in xs]\n    return {FINISH[finish]}\n```"


def load_environment(num_examples: int = 90, num_eval_examples: int = 60, seed: int = 0) -> vf.Environment:
    """Return an environment of small programming tasks.

    Args:
        num_examples: Number of training tasks, at most 90.
        num_eval_examples: Number of evaluation tasks, at most 60.
        seed: Random seed of the tests.
    """
    return vf.SingleTurnEnv(
        dataset=lambda: rows(TRAINED, num_examples, f"{seed}/train"),
        eval_dataset=lambda: rows(HELD_OUT, num_eval_examples, f"{seed}/eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([tests_pass]),
        policies={"engineer": engineer, "beginner": beginner},
    )
