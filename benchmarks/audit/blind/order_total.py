"""Order total: work out what an order costs from a short list of items."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You are the bookkeeper of a small wholesaler. Work out the total of the order in whole dollars. "
    "You may explain your steps; end with a line such as: Total: 86"
)
ITEMS = {
    "box of pencils": (4, 9),
    "desk lamp": (19, 45),
    "office chair": (89, 190),
    "filing cabinet": (120, 260),
    "whiteboard": (55, 140),
    "ream of paper": (5, 8),
    "monitor arm": (38, 90),
    "standing desk": (280, 620),
    "cable kit": (11, 24),
    "coat stand": (33, 70),
}
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def last_number(text: str) -> str | None:
    """Return the last number of a text without separators, or None."""
    found = NUMBER.findall(text)
    if not found:
        return None
    number = found[-1].replace(",", "")
    return number[:-3] if number.endswith(".00") else number


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the last number of the reply is the total of the order."""
    text = str(completion[-1].content or "")
    return float(last_number(text) == answer)


def states_total(completion: vf.Messages) -> float:
    """Return 1 if the reply has a line with the total."""
    return float(bool(re.search(r"(?im)^\s*total:", str(completion[-1].content or ""))))


def _order(rng: random.Random) -> tuple[str, int]:
    lines, total = [], 0
    for name in rng.sample(sorted(ITEMS), rng.randint(2, 3)):
        count, price = rng.randint(1, 6), rng.randint(*ITEMS[name])
        lines.append(f"{count} x {name} at ${price} each")
        total += count * price
    if rng.random() < 0.4:
        shipping = rng.choice((15, 25, 40))
        lines.append(f"shipping ${shipping}")
        total += shipping
    return "\n".join(lines), total


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        text, total = _order(random.Random(f"{seed}:{index}"))
        rows.append({"question": f"Order:\n{text}\n\nWhat is the total?", "answer": f"{total:,}"})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment in which the model adds up orders.

    Args:
        num_examples: Number of orders for training, and for evaluation.
        seed: Random seed of the orders.
    """
    rubric = vf.Rubric([correct])
    rubric.add_metric(states_total)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
    )
