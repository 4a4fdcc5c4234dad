"""Average speed: distance and time of a journey in two parts."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "What is the average speed of the whole journey in kilometers per hour, rounded to one decimal place? "
    "Answer <speed>number</speed>"
)
TOLERANCE = 0.01


def average(info: dict[str, Any]) -> float:
    """Return the average speed of a journey."""
    return 60 * sum(info["kilometers"]) / sum(info["minutes"])


def driver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Divide the distance by the time; take the mean of the two speeds in 20 % of the answers."""
    info = state["info"]
    if rng.random() < 0.8:
        return f"<speed>{average(info):.1f}</speed>"
    speeds = [60 * distance / time for distance, time in zip(info["kilometers"], info["minutes"])]
    return f"<speed>{sum(speeds) / 2:.1f}</speed>"


def correct(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 for the right speed."""
    try:
        given = float(parser.parse_answer(completion) or "")
    except ValueError:
        return 0.0
    return float(abs(given - average(info)) < TOLERANCE)


def _row(rng: random.Random) -> dict[str, Any]:
    info = {
        "kilometers": [rng.randint(20, 180), rng.randint(20, 180)],
        "minutes": [rng.randint(25, 110), rng.randint(25, 110)],
    }
    parts = [f"{distance} km in {time} minutes" for distance, time in zip(info["kilometers"], info["minutes"])]
    return {"question": f"First {parts[0]}, then {parts[1]}.", "answer": f"{average(info):.1f}", "info": info}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one journey per example.

    Args:
        num_examples: Number of journeys.
        seed: Random seed of the dataset; evaluation journeys differ from training journeys.
    """
    parser = vf.XMLParser(["speed"], answer_field="speed")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"driver": driver},
    )
