"""Countdown numbers: reach a target with four numbers and the four operations."""

from __future__ import annotations

import operator
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Find an expression that makes the target. Use every given number exactly once, and only +, -, *, / and parentheses. "
    "Answer <answer>expression</answer>, for example <answer>(3 + 5) * 12 - 7</answer>"
)
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
ALLOWED = re.compile(r"[0-9+\-*/() ]+")


def uses_all(expression: str, numbers: list[int]) -> bool:
    """Return whether an expression has exactly the given numbers."""
    return sorted(re.findall(r"[0-9]+", expression)) == sorted(map(str, numbers))


def value(expression: str) -> float | None:
    """Return the value of an arithmetic expression, None if it is not one."""
    if len(expression) > 200 or not ALLOWED.fullmatch(expression):
        return None
    try:
        return eval(expression, {"__builtins__": {}}, {})
    except Exception:
        return None


def correct(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 for an expression of the given numbers whose value is the target."""
    expression = parser.parse_answer(completion)
    if expression is None or not uses_all(expression, info["numbers"]):
        return 0.0
    reached = value(expression)
    return float(isinstance(reached, (int, float)) and abs(reached - info["target"]) < 1e-6)


def well_formed(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 for an answer that uses all numbers, whatever its value."""
    return float(uses_all(parser.parse_answer(completion) or "", info["numbers"]))


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Answer with the expression that the target was made from."""
    return f"<answer>{state['answer']}</answer>"


def novice(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Put any operations between the numbers."""
    first, *rest = state["info"]["numbers"]
    expression = str(first) + "".join(f" {rng.choice('+-*')} {number}" for number in rest)
    return f"<answer>{expression}</answer>"


def _puzzle(rng: random.Random) -> tuple[list[int], int, str]:
    """Return numbers, a target, and an expression that reaches it."""
    while True:
        numbers = [rng.randint(2, 10), rng.randint(2, 12), rng.randint(3, 50), rng.randint(11, 99)]
        rng.shuffle(numbers)
        total, expression = numbers[0], str(numbers[0])
        for number in numbers[1:]:
            sign = rng.choice("+-*")
            total = OPERATIONS[sign](total, number)
            expression = f"({expression} {sign} {number})"
        if 10 <= total <= 999 and total not in numbers:
            return numbers, total, expression[1:-1]


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        numbers, target, expression = _puzzle(rng)
        shown = rng.sample(numbers, len(numbers))
        question = f"Numbers: {', '.join(map(str, shown))}. Target: {target}."
        rows.append({"question": question, "answer": expression, "info": {"numbers": shown, "target": target}})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with number puzzles, all of which can be solved.

    Args:
        num_examples: Number of puzzles in each dataset.
        seed: Random seed; the puzzles for evaluation are drawn apart from those for training.
    """
    parser = vf.XMLParser(["answer"])
    rubric = vf.Rubric([correct], parser=parser)
    rubric.add_metric(well_formed)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"solver": solver, "novice": novice},
    )
