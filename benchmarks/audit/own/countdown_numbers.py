"""Countdown numbers: combine five numbers to reach a target."""

from __future__ import annotations

import math
import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Write an expression in Python's notation that uses each of the numbers exactly once and has the target as its value. "
    "You may use + - * / and parentheses. Answer <answer>expression</answer>"
)
NAMES: dict[str, Any] = {"__builtins__": {}}


def value(expression: str) -> float | None:
    """Return the value of an expression; None if it has none."""
    try:
        return float(eval(expression, dict(NAMES)))
    except Exception:
        return None


def correct(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 for an expression that uses the right numbers and reaches the target."""
    expression = parser.parse_answer(completion) or ""
    if sorted(re.findall(r"\d+", expression)) != sorted(map(str, info["numbers"])):
        return 0.0
    reached = value(expression)
    return float(reached is not None and math.isclose(reached, info["target"], abs_tol=1e-6))


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Remember an expression; lose the parentheses in 25 % of the answers."""
    expression = state["answer"]
    if rng.random() < 0.25:
        expression = expression.replace("(", "").replace(")", "")
    return f"<answer>{expression}</answer>"


def _row(rng: random.Random) -> dict[str, Any]:
    a, b, c, d, e = rng.sample(range(2, 25), 5)
    expression, target = rng.choice(
        [
            (f"({a} + {b}) * {c} - {d} * {e}", (a + b) * c - d * e),
            (f"({a} - {b}) * {c} + {d} + {e}", (a - b) * c + d + e),
            (f"{a} * ({b} + {c}) - ({d} - {e})", a * (b + c) - (d - e)),
        ]
    )
    numbers = sorted([a, b, c, d, e])
    question = f"Numbers: {numbers}. Target: {target}."
    return {"question": question, "answer": expression, "info": {"numbers": numbers, "target": target}}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with five numbers and a target per example.

    Args:
        num_examples: Number of targets.
        seed: Random seed of the dataset; evaluation targets differ from training targets.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"solver": solver},
    )
