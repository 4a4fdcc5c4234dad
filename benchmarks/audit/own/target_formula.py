"""Target formula: reach a number with four others."""

from __future__ import annotations

import ast
import operator
import random
import re
import zlib
from fractions import Fraction
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Reach the target with +, -, *, / and parentheses; use each of the numbers exactly once. "
    "Answer <formula>the formula, without an equals sign</formula>"
)
ALLOWED = re.compile(r"[0-9+\-*/() ]{1,80}")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value(node: ast.AST) -> Fraction:
    """Return the value of a parsed formula.

    Raises:
        ValueError: it contains anything but whole numbers and the four operators.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    raise ValueError("not a formula")


def reaches(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 for a formula that uses the numbers and has the target as its value."""
    text = parser.parse_answer(completion) or ""
    if not ALLOWED.fullmatch(text) or sorted(re.findall("[0-9]+", text)) != sorted(map(str, info["numbers"])):
        return 0.0
    try:
        return float(value(ast.parse(text, mode="eval").body) == info["target"])
    except (SyntaxError, ValueError, ZeroDivisionError):
        return 0.0


def planner(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Remember the formula; exchange an operator in 20 % of the answers."""
    formula = state["answer"]
    return f"<formula>{formula.replace('+', '-') if rng.random() < 0.2 else formula}</formula>"


def _row(rng: random.Random) -> dict[str, Any]:
    a, b, c, d = rng.sample(range(2, 30), 4)
    formula = rng.choice([f"{a} * {b} + {c} - {d}", f"({a} + {b}) * {c} - {d}", f"{a} * ({b} + {c}) + {d}"])
    target = int(value(ast.parse(formula, mode="eval").body))
    numbers = sorted([a, b, c, d])
    question = f"Numbers: {', '.join(map(str, numbers))}. Target: {target}."
    return {"question": question, "answer": formula, "info": {"numbers": numbers, "target": target}}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with four numbers and a target per example; any formula that reaches it is right.

    Args:
        num_examples: Number of targets.
        seed: Random seed of the dataset; evaluation targets differ from training targets.
    """
    parser = vf.XMLParser(["formula"], answer_field="formula")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([reaches], parser=parser),
        policies={"planner": planner},
    )
