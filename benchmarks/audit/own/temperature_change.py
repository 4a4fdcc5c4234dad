"""Temperature change: by how many degrees did it get warmer or colder?"""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "By how many degrees did the temperature change from the first to the last measurement? A rise is positive, a fall is "
    "negative. Answer <change>number</change>"
)
NUMBER = re.compile(r"\D*(\d+)\D*")
HOURS = (6, 10, 14, 18, 22)


def degrees(text: str) -> int | None:
    """Return the number in a text such as "12 degrees"; None without one."""
    found = NUMBER.fullmatch(text) if text.isascii() and len(text) < 40 else None
    return int(found[1]) if found else None


def observer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Subtract; take the wrong measurement in 25 % of the answers."""
    values = state["info"]["values"]
    last = values[-1] if rng.random() < 0.75 else rng.choice(values)
    return f"<change>{last - values[0]}</change>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right change."""
    return float(degrees(parser.parse_answer(completion) or "") == degrees(answer))


def _row(rng: random.Random) -> dict[str, Any]:
    values = rng.sample(range(-35, 45), len(HOURS))
    measured = ", ".join(f"{value} at {hour}:00" for value, hour in zip(values, HOURS))
    return {"question": f"Degrees: {measured}.", "answer": str(values[-1] - values[0]), "info": {"values": values}}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one day of measurements per example.

    Args:
        num_examples: Number of days.
        seed: Random seed of the dataset; evaluation days differ from training days.
    """
    parser = vf.XMLParser(["change"], answer_field="change")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"observer": observer},
    )
