"""Day count: how many days lie between two dates?"""

from __future__ import annotations

import datetime
import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Count the days. Think step by step, then finish with a line of the form\nAnswer: number"
STATED = re.compile(r"\banswer(?: is)?:?\s*(\d{1,6})\b", re.IGNORECASE)
FIRST_DAY = datetime.date(1990, 1, 1)


def spoken(day: datetime.date) -> str:
    """Return a date in words."""
    return f"{day:%B} {day.day}, {day.year}"


def calendar_reader(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Count on a calendar; be off by a day in 25 % of the answers."""
    days = int(state["answer"]) + (rng.choice([-1, 1]) if rng.random() < 0.25 else 0)
    return f"I count from month to month.\nAnswer: {days}"


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the reply states the right number as its answer."""
    return float(answer in STATED.findall(str(completion[-1].content or "")))


def _row(rng: random.Random) -> dict[str, Any]:
    first = FIRST_DAY + datetime.timedelta(days=rng.randrange(13_000))
    days = rng.randint(40, 900)
    question = f"How many days are there from {spoken(first)} to {spoken(first + datetime.timedelta(days=days))}?"
    return {"question": question, "answer": str(days)}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with two dates per example.

    Args:
        num_examples: Number of questions.
        seed: Random seed of the dataset; evaluation questions differ from training questions.
    """
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([correct]),
        policies={"calendar_reader": calendar_reader},
    )
