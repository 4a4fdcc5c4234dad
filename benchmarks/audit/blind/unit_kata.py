"""Unit kata: write a small Python function that passes unit tests."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Write a Python function with the name solve that does what is asked. Answer with one code block:\n"
    "```python\ndef solve(...):\n    ...\n```"
)
TIMEOUT_SECONDS = 5


def _numbers(rng: random.Random) -> list[int]:
    return [rng.randint(-30, 60) for _ in range(rng.randint(3, 8))]


def _words(rng: random.Random) -> list[str]:
    pool = "pen ruler desk folder stamp ink clip tape paper glue board chair file mail badge".split()  # noqa: SIM905
    return rng.sample(pool, rng.randint(3, 7))


KATAS: list[tuple[str, str, range, Callable[[random.Random], Any]]] = [
    ("Return the sum of the numbers in a list that are greater than {k}.",
     "return sum(n for n in x if n > {k})", range(-10, 30), _numbers),
    ("Return the list without its numbers that are divisible by {k}, in the same order.",
     "return [n for n in x if n % {k}]", range(2, 12), _numbers),
    ("Return the list with every number limited to at most {k}.",
     "return [min(n, {k}) for n in x]", range(0, 40), _numbers),
    ("Return how many numbers in a list differ from {k} by at most 5.",
     "return sum(abs(n - {k}) <= 5 for n in x)", range(0, 30), _numbers),
    ("Return the words of a list that have more than {k} letters, sorted alphabetically.",
     "return sorted(w for w in x if len(w) > {k})", range(2, 5), _words),
    ("Return the words of a list joined with {k} hyphens between two words.",
     "return ('-' * {k}).join(x)", range(1, 9), _words),
    ("Return the list rotated to the left by {k} places.",
     "return x[{k} % len(x):] + x[:{k} % len(x)]", range(1, 20), _numbers),
    ("Return the largest number in a list, or {k} if that is larger.",
     "return max([*x, {k}])", range(5, 50), _numbers),
]  # fmt: skip


def code_of(completion: vf.Messages) -> str:
    """Return the last code block of a reply, or "" without one."""
    blocks = re.findall(r"```(?:python|py)?\s*\n(.*?)```", str(completion[-1].content or ""), re.DOTALL)
    return blocks[-1] if blocks else ""


def passes(code: str, tests: list[tuple[Any, str]]) -> bool:
    """Run the code and its tests in a new interpreter."""
    checks = [f"assert repr(solve({argument!r})) == {expected!r}" for argument, expected in tests]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "kata.py")
        script.write_text("\n".join([code, *checks, ""]), encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(script)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


def tests_passed(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return 1 if the function passes its unit tests."""
    code = code_of(completion)
    return float(bool(code.strip()) and passes(code, info["tests"]))


def programmer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Write the function."""
    return f"```python\ndef solve(x):\n    {state['info']['body']}\n```"


def stub(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Return the argument unchanged."""
    return "```python\ndef solve(x):\n    return x\n```"


def _problems() -> list[dict[str, Any]]:
    made = []
    for text, body, values, make in KATAS:
        for k in values:
            rng, source = random.Random(f"{text}:{k}"), body.format(k=k)
            namespace: dict[str, Any] = {}
            exec(f"def solve(x):\n    {source}", namespace)
            arguments = [make(rng) for _ in range(6)]
            tests = [(argument, repr(namespace["solve"](list(argument)))) for argument in arguments]
            made.append({"question": text.format(k=k), "info": {"tests": tests, "body": source}})
    random.Random("kata").shuffle(made)
    return made


def load_environment(num_eval_examples: int = 70) -> vf.Environment:
    """Return an environment of small programming exercises.

    Args:
        num_eval_examples: Number of exercises that are reserved for evaluation.
    """
    problems = _problems()
    return vf.SingleTurnEnv(
        dataset=problems[num_eval_examples:],
        eval_dataset=problems[:num_eval_examples],
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([tests_passed]),
        policies={"programmer": programmer, "stub": stub},
    )
