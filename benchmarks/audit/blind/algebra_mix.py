"""Algebra mix: short competition-style problems whose answers are numbers or pairs of numbers."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Solve the problem. Think step by step if you need to, and put the final answer in \\boxed{}. "
    "Write a pair of numbers with a comma, for example \\boxed{4,7}."
)
UNITS = re.compile(r"\\text\{[^}]*\}|\\mbox\{[^}]*\}|\\?(?:dollars?|degrees?)\b")


def normalize(text: str) -> str:
    """Bring an answer into the form in which answers are compared (after the MATH reference code)."""
    text = text.strip().strip("$").strip()
    text = UNITS.sub("", text).replace("\\$", "").replace("{,}", ",")
    for token in ("\\left", "\\right", "\\!", "\\,", "\\ ", "^\\circ"):
        text = text.replace(token, "")
    text = text.replace(" ", "").rstrip(".")
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    if text.replace(",", "").isdigit():  # 100,000 -> 100000
        text = text.replace(",", "")
    return text


def equation_pair(rng: random.Random) -> tuple[str, str]:
    x, y = rng.randint(2, 35), rng.randint(2, 35)
    a, b = rng.randint(2, 6), rng.randint(2, 6)
    c, d = a + rng.randint(1, 4), b
    return (
        f"Find the values of x and y with {a}x + {b}y = {a * x + b * y} and {c}x + {d}y = {c * x + d * y}. "
        "Give x first, then y.",
        f"{x},{y}",
    )


def roots(rng: random.Random) -> tuple[str, str]:
    p, q = sorted(rng.sample(range(2, 30), 2))
    return f"Find the two solutions of x^2 - {p + q}x + {p * q} = 0, the smaller one first.", f"{p},{q}"


def ticket_sales(rng: random.Random) -> tuple[str, str]:
    seats, price, days = rng.randint(110, 420), rng.randint(11, 60), rng.randint(3, 9)
    return (
        f"A hall with {seats} seats is sold out on {days} evenings. Each ticket costs {price} dollars. "
        "How many dollars are earned in total?",
        f"{seats * price * days:,}",
    )


def arithmetic_series(rng: random.Random) -> tuple[str, str]:
    first, step, count = rng.randint(1, 40), rng.randint(2, 15), rng.randint(10, 60)
    total = count * (2 * first + (count - 1) * step) // 2
    return (
        f"What is the sum of the first {count} terms of the sequence {first}, {first + step}, {first + 2 * step}, ...?",
        f"{total:,}",
    )


KINDS = [equation_pair, roots, ticket_sales, arithmetic_series]


def _pool(size: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(f"algebra:{seed}")
    found: dict[str, dict[str, Any]] = {}
    while len(found) < size:
        kind = rng.choice(KINDS)
        question, answer = kind(rng)
        found.setdefault(question, {"question": question, "answer": answer, "info": {"kind": kind.__name__}})
    return list(found.values())


def correct(completion: vf.Messages, answer: str, parser: vf.Parser) -> float:
    """1 if the boxed answer is right."""
    boxed = parser.parse_answer(completion)
    return float(bool(boxed) and normalize(boxed) == normalize(answer))


def boxed(text: str) -> str:
    return vf.extract_boxed_answer(text, strict=True)


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Gives the right answer."""
    return f"The answer is \\boxed{{{state['answer']}}}."


def hurried(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Is right in a third of the cases and otherwise guesses."""
    if rng.random() < 1 / 3:
        return solver(messages, state, rng)
    return f"\\boxed{{{rng.randint(2, 30)},{rng.randint(2, 30)}}}"


def load_environment(num_examples: int = 300, num_eval_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with algebra problems.

    Args:
        num_examples: Problems for training.
        num_eval_examples: Problems for evaluation.
        seed: Random seed of the problems.
    """
    rows = _pool(num_examples + num_eval_examples, seed)
    parser = vf.MaybeThinkParser(boxed)
    return vf.SingleTurnEnv(
        dataset=rows[:num_examples],
        eval_dataset=rows[num_examples:],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"solver": solver, "hurried": hurried},
    )
