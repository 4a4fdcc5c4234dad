"""Budget equation: combine given amounts with + - * / so that they make the target amount."""

import ast
import operator
import random
import re
from fractions import Fraction

import rove as vf

SYSTEM_PROMPT = (
    "Combine the amounts with + - * / and parentheses so that the result is the target. Use each amount exactly once. "
    "Reply with <formula>expression</formula>, for example <formula>(20 - 8) * 3 + 5</formula>."
)
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value_of(node, used):
    """Return the value of a formula and collect the amounts in it."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        left, right = value_of(node.left, used), value_of(node.right, used)
        return OPERATIONS[type(node.op)](left, right)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    raise ValueError("not a formula")


def solves(parser, completion, info) -> float:
    """1 if the formula uses the amounts and gives the target."""
    formula = parser.parse_answer(completion)
    if not formula or len(formula) > 60 or not re.fullmatch(r"[\d\s+\-*/()]+", formula):
        return 0.0
    used: list[int] = []
    try:
        result = value_of(ast.parse(formula.strip(), mode="eval").body, used)
    except (ValueError, SyntaxError, ZeroDivisionError):
        return 0.0
    return float(result == info["target"] and sorted(used) == sorted(info["amounts"]))


def make_row(rng):
    """Draw four amounts and combine them to a target."""
    while True:
        amounts = [rng.choice([2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 40, 50]) for _ in range(4)]
        total = amounts[0]
        for amount in amounts[1:]:
            sign = rng.choice("++--*")
            total = {"+": total + amount, "-": total - amount, "*": total * amount}[sign]
        if 10 <= total <= 300 and total not in amounts and len(set(amounts)) == 4:
            break
    listed = sorted(amounts)
    question = f"Amounts: {', '.join(map(str, listed))}. Target: {total}"
    return {"question": question, "answer": "", "info": {"amounts": listed, "target": total}}


def make_rows(count, seed, evaluation):
    rng, rows, seen = random.Random(seed), [], set()
    while len(rows) < count:
        row = make_row(rng)
        if (sum(row["info"]["amounts"]) % 5 == 0) == evaluation and row["question"] not in seen:
            seen.add(row["question"])
            rows.append(row)
    return rows


def load_environment(num_examples: int = 800, seed: int = 0) -> vf.Environment:
    parser = vf.XMLParser(["formula"], answer_field="formula")
    return vf.SingleTurnEnv(
        dataset=lambda: make_rows(num_examples, f"train-{seed}", False),
        eval_dataset=lambda: make_rows(num_examples // 4, f"eval-{seed}", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([solves], parser=parser),
    )
