"""Gnomon shadow: the length of the shadow that a sundial's gnomon casts on level ground."""

from __future__ import annotations

import math
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "A vertical gnomon stands on level ground. Work out the length of its shadow in centimetres to one decimal place "
    "and write it as <cm>12.3</cm>."
)
SUNDIALS = ("churchyard", "orchard", "schoolyard", "harbour", "rooftop", "cloister")


def to_number(text: str) -> float | None:
    """Return the number in a text, with or without the unit."""
    try:
        return float(text.lower().removesuffix("cm").replace(",", "").strip())
    except ValueError:
        return None


def close(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 within 1% of the length, 0.5 within 5%, and 0 otherwise."""
    length = parser.parse_answer(completion)
    if length is None:
        return 0.0
    error = abs(length - float(answer)) / float(answer)
    if error > 0.05:
        return 0.0
    if error > 0.01:
        return 0.5
    return 1.0


def _rows(count: int, seed: str, parity: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    cases = [(height, elevation) for height in range(20, 181) for elevation in range(12, 76)]
    cases = [case for case in cases if sum(case) % 2 == parity]
    rows = []
    for height, elevation in rng.sample(cases, count):
        shadow = height / math.tan(math.radians(elevation))
        question = (
            f"The gnomon of the {rng.choice(SUNDIALS)} sundial is {height} cm high, and the sun is {elevation} degrees "
            "above the horizon. How long is the shadow?"
        )
        rows.append({"question": question, "answer": f"{shadow:.1f}"})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment about shadows of sundials.

    Args:
        num_examples: Number of questions, at most 1,000.
        seed: Random seed of the questions. Evaluation uses other pairs of height and elevation than training.
    """
    count = min(num_examples, 1000)
    parser = vf.XMLParser(["cm"], answer_field="cm", extract_fn=to_number)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(count, f"{seed}:train", 0),
        eval_dataset=lambda: _rows(count, f"{seed}:eval", 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([close], parser=parser),
    )
