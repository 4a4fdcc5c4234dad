"""Laundry: decide from the care labels whether clothes can go into the same wash."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Can all of these go into one wash? They can if no label forbids the temperature of the program and white clothes "
    "are not mixed with dark or red ones. Answer with one word in lower case: yes or no."
)
CLOTHES = (
    "shirt",
    "towel",
    "blouse",
    "pillowcase",
    "pair of socks",
    "tea towel",
    "sweater",
    "pair of jeans",
    "T-shirt",
    "scarf",
)
COLORS = ("white", "gray", "beige", "dark blue", "black", "red")
DARK = {"dark blue", "black", "red"}
TEMPERATURES = (30, 40, 60, 90)


def fits(clothes: list[tuple[str, str, int]], program: int) -> bool:
    colors = {color for _, color, _ in clothes}
    return all(maximum >= program for _, _, maximum in clothes) and not ("white" in colors and colors & DARK)


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 for the right word."""
    return float((completion[-1]["content"] or "").strip() == answer)


def housekeeper(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Check the labels and the colors."""
    return "yes" if fits(state["info"]["clothes"], state["info"]["program"]) else "no"


def color_blind(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Check only the temperatures."""
    return "yes" if all(maximum >= state["info"]["program"] for _, _, maximum in state["info"]["clothes"]) else "no"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        wanted = index % 2 == 0
        while True:
            names = rng.sample(CLOTHES, rng.randint(2, 4))
            clothes = [(name, rng.choice(COLORS), rng.choice(TEMPERATURES)) for name in names]
            program = rng.choice(TEMPERATURES[:3])
            warm_enough = all(maximum >= program for _, _, maximum in clothes)
            if fits(clothes, program) == wanted and (wanted or warm_enough == (index % 4 == 1)):
                break
        items = "; ".join(f"{color} {name}, at most {maximum} degrees" for name, color, maximum in clothes)
        info = {"clothes": [list(entry) for entry in clothes], "program": program}
        rows.append(
            {
                "question": f"Program: {program} degrees. Clothes: {items}.",
                "answer": "yes" if wanted else "no",
                "info": info,
            }
        )
    random.Random(f"{seed}:order").shuffle(rows)
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with yes-or-no questions about laundry; half of the answers are yes.

    Args:
        num_examples: Number of questions in each dataset.
        seed: Random seed of the questions; evaluation questions are drawn separately and never occur in training.
    """

    def training() -> list[dict[str, Any]]:
        held_out = {row["question"] for row in _rows(num_examples, f"{seed}:eval")}
        return [row for row in _rows(num_examples, f"{seed}:train") if row["question"] not in held_out]

    return vf.SingleTurnEnv(
        dataset=training,
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([correct]),
        policies={"housekeeper": housekeeper, "color_blind": color_blind},
    )
