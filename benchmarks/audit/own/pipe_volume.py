"""Pipe volume: how much water does a pipe hold?"""

from __future__ import annotations

import math
import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Compute the volume in liters (1 liter = 1000 cubic centimeters). An answer within 1 percent of the exact volume is "
    "right. Answer <liters>number</liters>, without the unit."
)
TOLERANCE = 0.01


def liters(diameter: int, length: int) -> float:
    """Return the volume of a pipe with an inner diameter in centimeters and a length in meters."""
    return math.pi * (diameter / 2) ** 2 * length * 100 / 1000


def engineer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Compute with 3.14 for pi; forget to halve the diameter in 20 % of the answers."""
    diameter, length = state["info"]["diameter"], state["info"]["length"]
    radius = diameter if rng.random() < 0.2 else diameter / 2
    return f"<liters>{3.14 * radius**2 * length / 10:.1f}</liters>"


def close(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 for a number within the tolerance."""
    exact = liters(info["diameter"], info["length"])
    try:
        given = float(parser.parse_answer(completion) or "")
    except ValueError:
        return 0.0
    return float(abs(given - exact) <= TOLERANCE * exact)


def _row(rng: random.Random) -> dict[str, Any]:
    diameter, length = rng.randint(8, 90), rng.randint(3, 150)
    question = f"A pipe has an inner diameter of {diameter} cm and is {length} m long."
    info = {"diameter": diameter, "length": length}
    return {"question": question, "answer": f"{liters(diameter, length):.2f}", "info": info}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one pipe per example.

    Args:
        num_examples: Number of pipes.
        seed: Random seed of the dataset; evaluation pipes differ from training pipes.
    """
    parser = vf.XMLParser(["liters"], answer_field="liters")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([close], parser=parser),
        policies={"engineer": engineer},
    )
