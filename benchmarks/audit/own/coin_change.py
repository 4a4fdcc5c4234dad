"""Coin change: the least number of coins for an amount."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "What is the least number of coins that make the amount exactly? Answer <coins>number</coins>"


def fewest(amount: int, coins: list[int]) -> int:
    """Return the least number of coins for an amount; one of the coins is 1."""
    best = [0]
    for sub in range(1, amount + 1):
        best.append(1 + min(best[sub - coin] for coin in coins if coin <= sub))
    return best[amount]


def greedy(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Always take the largest coin that fits, which is not always best."""
    left, taken = state["info"]["amount"], 0
    for coin in sorted(state["info"]["coins"], reverse=True):
        taken, left = taken + left // coin, left % coin
    return f"<coins>{taken}</coins>"


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Compute the number by dynamic programming."""
    return f"<coins>{fewest(state['info']['amount'], state['info']['coins'])}</coins>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right number; leading zeros do not matter."""
    text = parser.parse_answer(completion) or ""
    return float(text.isdigit() and int(text) == int(answer))


def _row(rng: random.Random) -> dict[str, Any]:
    coins = [1, *sorted(rng.sample(range(3, 40), 3))]
    amount = rng.randint(150, 900)
    question = f"Amount: {amount}. Coins: {', '.join(map(str, coins))}."
    return {"question": question, "answer": str(fewest(amount, coins)), "info": {"amount": amount, "coins": coins}}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one amount and four kinds of coins per example.

    Args:
        num_examples: Number of amounts.
        seed: Random seed of the dataset; evaluation amounts differ from training amounts.
    """
    parser = vf.XMLParser(["coins"], answer_field="coins")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"solver": solver, "greedy": greedy},
    )
