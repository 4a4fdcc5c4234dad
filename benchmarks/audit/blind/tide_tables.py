"""Tide tables: heights between high and low water by the rule of twelfths."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Use the rule of twelfths: in the six hours between high and low water, the level changes by "
    "1, 2, 3, 3, 2 and 1 twelfths of the range. Give the height in meters with one decimal: <height>3.4</height>"
)
TWELFTHS = (0, 1, 3, 6, 9, 11, 12)
HARBORS = (
    "Ardmore",
    "Brevik",
    "Calder Point",
    "Dunmore",
    "Eastholm",
    "Fenwick",
    "Garron",
    "Haven Cross",
    "Inishkeel",
    "Jura Sound",
    "Kilbride",
    "Lowmoor",
    "Marloes",
    "Northwick",
    "Orford Quay",
    "Porthgain",
    "Quillan",
    "Rosscove",
)


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the height is right."""
    return float(parser.parse_answer(completion) == answer)


def _row(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(2, 19)
    span = 12 * rng.randint(1, 5)  # tenths of a meter, so that a twelfth is exact
    hours = rng.randint(1, 5)
    falling = rng.random() < 0.5
    first, second = ("high", "low") if falling else ("low", "high")
    levels = {"high": low + span, "low": low}
    minutes = rng.randrange(0, 18 * 60)
    height = levels[first] + (-1 if falling else 1) * span * TWELFTHS[hours] // 12
    clock = [f"{(minutes + 60 * h) // 60:02}:{(minutes + 60 * h) % 60:02}" for h in (0, hours)]
    question = (
        f"{rng.choice(HARBORS)}: {first} water at {clock[0]}, {levels[first] / 10:.1f} m; "
        f"{second} water six hours later, {levels[second] / 10:.1f} m. How high is the water at {clock[1]}?"
    )
    return {"question": question, "answer": f"{height / 10:.1f}"}


def _rows(count: int, seed: int) -> list[dict[str, Any]]:
    return [_row(random.Random(seed + index)) for index in range(count)]


def load_environment(num_examples: int = 600, seed: int = 0) -> vf.Environment:
    """Return an environment with questions about tides.

    Args:
        num_examples: Number of questions in each dataset.
        seed: Random seed of the questions; training and evaluation are drawn with different seeds.
    """
    parser = vf.XMLParser(["height"], answer_field="height")
    rubric = vf.Rubric([correct], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.1, name="format")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, seed),
        eval_dataset=lambda: _rows(num_examples, seed + 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
