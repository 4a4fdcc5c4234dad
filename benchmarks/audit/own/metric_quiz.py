"""Metric quiz: convert a length, weight or volume; four options."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Choose the right option. Answer <answer>letter</answer>"
LETTERS = "ABCD"
UNITS = [
    ("centimeters", "meters", 100),
    ("millimeters", "centimeters", 10),
    ("millimeters", "meters", 1000),
    ("meters", "kilometers", 1000),
    ("grams", "kilograms", 1000),
    ("milliliters", "liters", 1000),
    ("centiliters", "liters", 100),
]


def student(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Convert, then look for the result among the options; choose any option in 20 % of the answers."""
    return f"<answer>{state['answer'] if rng.random() < 0.8 else rng.choice(LETTERS)}</answer>"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Choose any option."""
    return f"<answer>{rng.choice(LETTERS)}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right letter."""
    return float(parser.parse_answer(completion) == answer)


def _row(rng: random.Random) -> dict[str, Any]:
    small, large, factor = rng.choice(UNITS)
    amount = rng.randint(2, 400)
    right = amount * factor
    options = sorted({right // 10, right, right * 10, right * 100})
    shown = "\n".join(f"{letter}) {option}" for letter, option in zip(LETTERS, options))
    question = f"How many {small} are {amount} {large}?\n{shown}"
    return {"question": question, "answer": LETTERS[options.index(right)]}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one conversion per example; wrong options are off by powers of ten.

    Args:
        num_examples: Number of conversions.
        seed: Random seed of the dataset; evaluation conversions differ from training conversions.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"student": student, "guesser": guesser},
    )
