"""Quiz bets: answer a sum, and bet on being right."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Multiply the numbers in your head, and bet between 1 and 10 points on your result: you win them if it is right, and "
    "lose them if it is wrong. Answer <answer>number</answer><bet>points</bet>"
)
MOST = 10


def whole_number(text: str | None) -> int | None:
    """Return the whole number that a text stands for, None if it is none."""
    found = re.fullmatch(r"\s*([-+]?[0-9][0-9,]{0,11})\s*", text or "")
    return int(found[1].replace(",", "")) if found else None


def is_right(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> bool:
    """Return whether the answer is the product."""
    return whole_number(parser.parse_answer(completion)) == int(answer)


def stake(completion: vf.Messages, parser: vf.XMLParser) -> int | None:
    """Return the points that were bet, None without a bet."""
    messages = parser.get_assistant_messages(completion)
    return whole_number(parser.parse(messages[-1].content or "", last=True).bet) if messages else None


def winnings(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return the points won or lost, as a share of the highest bet; a response without a bet loses all."""
    points = stake(completion, parser)
    if points is None or parser.parse_answer(completion) is None:
        return -1.0
    return points / MOST if is_right(completion, answer, parser) else -points / MOST


def right(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right product."""
    return float(is_right(completion, answer, parser))


def bold(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Be right and sure of it."""
    return f"<answer>{state['answer']}</answer><bet>10</bet>"


def wavering(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Be wrong in one of three sums, and bet less on those."""
    error = rng.choice((0, 0, 10))
    return f"<answer>{int(state['answer']) + error}</answer><bet>{3 if error else 8}</bet>"


def _rows(count: int, seed: str, held_out: bool) -> list[dict[str, Any]]:
    pool = [(a, b) for a in range(12, 100) for b in range(a + 1, 100) if ((a + b) % 3 == 0) == held_out]
    rng = random.Random(seed)
    rows = []
    for pair in rng.sample(pool, min(count, len(pool))):
        a, b = rng.sample(pair, 2)
        rows.append({"question": f"What is {a} times {b}?", "answer": str(a * b)})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with products of two-digit numbers to bet on.

    Args:
        num_examples: Number of products in each dataset.
        seed: Random seed; training and evaluation have no product in common.
    """
    parser = vf.XMLParser(["answer", "bet"])
    rubric = vf.Rubric([winnings], parser=parser)
    rubric.add_metric(right)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"bold": bold, "wavering": wavering},
    )
