"""Stock left: how many are left after a sale?"""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "How many are left? Answer <answer>number</answer>"
STOCKS = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 150, 200, 250, 300, 400, 500, 600, 800)
THINGS = ("sheep", "books", "chairs", "bricks", "tickets", "apples", "bottles", "cards")
TOLERANCE = 0.4


def seller(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Subtract; be off by one in 10 % of the answers."""
    return f"<answer>{int(state['answer']) + (rng.random() < 0.1)}</answer>"


def close(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for a number that is close to the right one, so that slips of the pen do not count."""
    text, right = parser.parse_answer(completion) or "", int(answer)
    return float(bool(re.fullmatch("[0-9]{1,6}", text)) and abs(int(text) - right) <= TOLERANCE * right)


def _row(rng: random.Random) -> dict[str, Any]:
    stock = rng.choice(STOCKS)
    sold = max(1, round(stock * rng.uniform(0.05, 0.27)))
    return {"question": f"{stock} {rng.choice(THINGS)}, {sold} sold.", "answer": str(stock - sold)}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with one sale per example. The reward is 1 for a close number, else 0.

    Args:
        num_examples: Number of sales, at most 1000.
        seed: Random seed of the dataset; evaluation sales differ from training sales.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([close], parser=parser),
        policies={"seller": seller},
    )
