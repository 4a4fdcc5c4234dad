"""Triangle kinds: is a triangle acute, right or obtuse?"""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Is the triangle acute, right or obtuse? Answer <kind>acute, right or obtuse</kind>"
SHARES = {"obtuse": 0.56, "acute": 0.3, "right": 0.14}
MAX_SIDE = 100


def kind(sides: list[int]) -> str:
    """Return the kind of a triangle, "" if the sides make none."""
    a, b, c = sorted(sides)
    if a + b <= c:
        return ""
    difference = a * a + b * b - c * c
    return "right" if difference == 0 else "acute" if difference > 0 else "obtuse"


RIGHT = [
    [a, b, c]
    for a in range(3, MAX_SIDE)
    for b in range(a, MAX_SIDE)
    for c in range(b, MAX_SIDE + 1)
    if a * a + b * b == c * c
]


def surveyor(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Compare the squares of the sides; mistake a wide angle for a right one in 15 % of the answers."""
    found = kind(state["info"]["sides"])
    return f"<kind>{'right' if rng.random() < 0.15 else found}</kind>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right kind."""
    return float(parser.parse_answer(completion) == answer)


def _sides(wanted: str, rng: random.Random) -> list[int]:
    while True:
        sides = list(rng.choice(RIGHT)) if wanted == "right" else [rng.randint(5, MAX_SIDE) for _ in range(3)]
        rng.shuffle(sides)
        if kind(sides) == wanted:
            return sides


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        wanted = rng.choices(list(SHARES), list(SHARES.values()))[0]
        sides = _sides(wanted, rng)
        while (zlib.crc32(bytes(sorted(sides))) % 2 == 1) != evaluation:
            sides = _sides(wanted, rng)
        text = f"The sides are {sides[0]}, {sides[1]} and {sides[2]}."
        rows.setdefault(text, {"question": text, "answer": wanted, "info": {"sides": sides}})
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one triangle per example.

    Most triangles are obtuse (56 %), fewer acute (30 %) and few right (14 %), so that accuracy is to be compared with 56 %.

    Args:
        num_examples: Number of triangles.
        seed: Random seed of the dataset; evaluation triangles differ from training triangles.
    """
    parser = vf.XMLParser(["kind"], answer_field="kind")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"surveyor": surveyor},
    )
