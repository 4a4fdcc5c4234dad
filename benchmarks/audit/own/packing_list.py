"""Packing list: what is still missing in the suitcase?"""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Write the things that are not packed yet, separated by commas: <missing>things</missing>"
THINGS = [
    "bath towel", "blanket", "camera", "compass", "first aid kit", "flashlight", "hair brush", "hat", "hiking boots",
    "matches", "notebook", "novel", "passport", "pocket knife", "rain jacket", "rope", "scarf", "sleeping bag", "soap",
    "sun glasses", "swim suit", "tent", "tooth brush", "umbrella", "water bottle", "wool socks",
]  # fmt: skip
LIST = re.compile(r"(?:\w+(?:\s+\w+)*\s*,?\s*)+")


def packer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Compare the two lists; forget one thing in 25 % of the answers."""
    missing = state["answer"].split(", ")
    if rng.random() < 0.25:
        missing.remove(rng.choice(missing))
    return f"<missing>{', '.join(missing)}</missing>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for a list of exactly the missing things, in any order."""
    text = (parser.parse_answer(completion) or "").lower()
    if not LIST.fullmatch(text):
        return 0.0
    return float(sorted(thing.strip() for thing in text.split(",")) == sorted(answer.split(", ")))


def _row(rng: random.Random) -> dict[str, Any]:
    needed = rng.sample(THINGS, rng.randint(8, 12))
    missing = needed[: rng.randint(2, 4)]
    packed = rng.sample(needed[len(missing) :], len(needed) - len(missing))
    rng.shuffle(needed)
    question = f"Needed: {', '.join(needed)}.\nPacked: {', '.join(packed)}."
    return {"question": question, "answer": ", ".join(missing)}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one suitcase per example.

    Args:
        num_examples: Number of suitcases.
        seed: Random seed of the dataset; evaluation suitcases differ from training suitcases.
    """
    parser = vf.XMLParser(["missing"], answer_field="missing")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"packer": packer},
    )
