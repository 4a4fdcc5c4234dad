"""Expand brackets: write the product of two brackets as a sum."""

from __future__ import annotations

import ast
import operator
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Expand the product and write it as a sum of terms without brackets, such as 2x^2 - 3xy + y^2.\n"
    "Answer <answer>sum</answer>"
)
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
POINTS = 2


def value(node: ast.AST, at: dict[str, int]) -> int:
    """Return the value of a parsed sum of terms where the variables are as in `at`.

    Raises:
        ValueError: there is something else in it.
    """
    if isinstance(node, ast.Expression):
        return value(node.body, at)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in at:
        return at[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand, at)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](value(node.left, at), value(node.right, at))
    raise ValueError(f"{type(node).__name__} is not allowed")


def parsed(text: str) -> ast.AST | None:
    """Return a sum in usual notation as a syntax tree, None if it is none."""
    text = re.sub(r"\s", "", text.replace("**", "^").replace("²", "^2").replace("·", "*"))
    if len(text) > 100 or not re.fullmatch(r"[0-9xy^+*\-]+", text):
        return None
    text = re.sub(r"([xy])\^2", r"\1*\1", text)
    text = re.sub(r"(?<=[0-9xy])(?=[xy])", "*", text)
    try:
        return ast.parse(text, mode="eval")
    except SyntaxError:
        return None


def equal(first: ast.AST, second: ast.AST) -> bool:
    """Return whether two sums have the same values."""
    for _ in range(POINTS):
        at = {name: random.randrange(4) for name in "xy"}
        if value(first, at) != value(second, at):
            return False
    return True


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for a sum that equals the right one, in whatever order its terms are."""
    given, right = parsed(parser.parse_answer(completion) or ""), parsed(answer)
    if given is None or right is None:
        return 0.0
    try:
        return float(equal(given, right))
    except ValueError:
        return 0.0


def written(terms: list[tuple[int, str]]) -> str:
    """Return a sum of terms in usual notation."""
    text = ""
    for factor, letters in terms:
        if factor:
            size = "" if abs(factor) == 1 and letters else str(abs(factor))
            sign = ("-" if factor < 0 else "") if not text else (" - " if factor < 0 else " + ")
            text += f"{sign}{size}{letters}"
    return text


def oracle(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Expand correctly."""
    return f"<answer>{state['answer']}</answer>"


def off_by_one(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Get the last factor wrong in half of all products."""
    return f"<answer>{state['answer']}{rng.choice(('', ' + y^2'))}</answer>"


def _pool(split: int) -> list[tuple[int, int, int, int]]:
    """Return the factors a, b, c, d of all products (ax + by)(cx + dy) of a split."""
    signed = [n for n in range(-9, 10) if n]
    return [
        (a, b, c, d) for a in range(1, 8) for b in signed for c in range(1, 8) for d in signed if (a + c) % 2 == split
    ]


def _rows(count: int, seed: str, split: int) -> list[dict[str, Any]]:
    rows, pool = [], _pool(split)
    for a, b, c, d in random.Random(seed).sample(pool, min(count, len(pool))):
        question = f"Expand ({written([(a, 'x'), (b, 'y')])})({written([(c, 'x'), (d, 'y')])})."
        answer = written([(a * c, "x^2"), (a * d + b * c, "xy"), (b * d, "y^2")])
        rows.append({"question": question, "answer": answer})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with products of two brackets; the seed draws them, evaluation has products of its own."""
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", 0),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"oracle": oracle, "off_by_one": off_by_one},
    )
