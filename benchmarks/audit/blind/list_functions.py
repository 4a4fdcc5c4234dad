"""Small functions: write a Python function that does what a sentence says."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Write a Python function `f` that does what the task says. Put the code in one block:\n"
    "```python\ndef f(values):\n    ...\n```"
)
BLOCK = re.compile(r"```(?:python)?\s*\n(.*?)```", re.DOTALL)
FILTERS = {
    "greater than {k}": "value > {k}",
    "smaller than {k}": "value < {k}",
    "divisible by {d}": "value % {d} == 0",
    "not divisible by {d}": "value % {d} != 0",
}
CHANGES = {
    "multiplied by {m}": "value * {m}",
    "increased by {m}": "value + {m}",
    "squared": "value * value",
    "negated": "-value",
}
RESULTS = {
    "the sum": "sum({items})",
    "the number": "len({items})",
    "the list": "list({items})",
    "the list, largest first,": "sorted({items}, reverse=True)",
    "the largest, or 0 if there is none,": "max({items}, default=0)",
}


def passes(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return 1 if the function passes the tests."""
    blocks = BLOCK.findall(str(completion[-1].content or ""))
    if not blocks:
        return 0.0
    tests = "\n".join(f"assert f({values}) == {result}" for values, result in info["tests"])
    try:
        run = subprocess.run(
            [sys.executable, "-I", "-c", f"{blocks[-1]}\n{tests}\n"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=5,
        )
    except (subprocess.TimeoutExpired, ValueError):
        return 0.0
    return float(run.returncode == 0)


def _task(rng: random.Random) -> tuple[str, str]:
    numbers = {"k": rng.randint(-5, 15), "d": rng.randint(2, 6), "m": rng.randint(2, 9)}
    which, change, result = (rng.choice(sorted(table)) for table in (FILTERS, CHANGES, RESULTS))
    if result == "the number":
        text = f"Return the number of values that are {which}."
        change = "squared"
    else:
        text = f"Take the values that are {which}, each {change}. Return {result} of these."
        text = text.replace(", of these", " of these")
    condition, expression = FILTERS[which].format(**numbers), CHANGES[change].format(**numbers)
    items = f"[{expression} for value in values if {condition}]"
    return text.format(**numbers), f"def f(values):\n    return {RESULTS[result].format(items=items)}\n"


def _rows(count: int, seed: str, known: set[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    rng = random.Random(seed)
    while len(rows) < count:
        text, code = _task(rng)
        if text in known:
            continue
        known.add(text)
        space: dict[str, Any] = {}
        exec(code, space)
        inputs = [[], *([rng.randint(-20, 30) for _ in range(rng.randint(1, 9))] for _ in range(6))]
        tests = [(values, space["f"](values)) for values in inputs]
        example = f"For example, f({tests[1][0]}) is {tests[1][1]}."
        question = f"The function f gets a list of whole numbers. {text} {example}"
        rows.append({"question": question, "answer": code, "info": {"tests": tests}})
    return rows


def load_environment(num_train: int = 250, num_eval: int = 80, seed: int = 0) -> vf.Environment:
    """Return an environment in which the model writes small functions.

    Args:
        num_train: Number of training tasks.
        num_eval: Number of evaluation tasks.
        seed: Random seed of the tasks.
    """
    known: set[str] = set()
    evaluation = _rows(num_eval, f"{seed}:eval", known)
    train = _rows(num_train, f"{seed}:train", known)
    return vf.SingleTurnEnv(
        dataset=train,
        eval_dataset=evaluation,
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([passes]),
    )
