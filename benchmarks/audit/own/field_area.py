"""Field area: how large is a field with two parallel sides?"""

from __future__ import annotations

import math
import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "How many square meters does the field have? Answer <area>number</area>"


def area(info: dict[str, int]) -> float:
    """Return the area of a trapezoid."""
    return (info["first"] + info["second"]) / 2 * info["distance"]


def surveyor(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Compute the area, with a small error in half of the answers."""
    error = rng.uniform(-0.1, 0.1) if rng.random() < 0.5 else 0.0
    return f"<area>{area(state['info']) * (1 + error):.1f}</area>"


def accuracy(completion: vf.Messages, info: dict[str, int], parser: vf.XMLParser) -> float:
    """Return 1 for the exact area, and 0.1 less for every 2 percent of error."""
    try:
        given = float(parser.parse_answer(completion) or "")
    except ValueError:
        return 0.0
    if not math.isfinite(given):
        return 0.0
    return 1 - 5 * abs(given - area(info)) / area(info)


def _row(rng: random.Random) -> dict[str, Any]:
    info = {"first": rng.randint(12, 160), "second": rng.randint(12, 160), "distance": rng.randint(10, 90)}
    question = (
        f"Two sides of a field are parallel and {info['distance']} m apart; one is {info['first']} m long, the other "
        f"{info['second']} m."
    )
    return {"question": question, "answer": f"{area(info):g}", "info": info}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one field per example. The reward is between 0 and 1.

    Args:
        num_examples: Number of fields.
        seed: Random seed of the dataset; evaluation fields differ from training fields.
    """
    parser = vf.XMLParser(["area"], answer_field="area")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([accuracy], parser=parser),
        policies={"surveyor": surveyor},
    )
