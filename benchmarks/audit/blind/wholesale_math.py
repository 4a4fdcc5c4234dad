"""Wholesale math: word problems about stock, prices, and deliveries, answered in a LaTeX box."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Solve the problem step by step. Put the final number in \\boxed{}."
GOODS = "bricks tiles bottles notebooks candles lamps mugs chairs screws batteries".split()
PLACES = "Leeds Porto Graz Turin Ghent Malmo Lyon Bergen Cork Basel".split()


def boxed(text: str) -> str | None:
    """Return the content of the last box, with balanced braces."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 1, start + len("\\boxed{")
    for index in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[begin:index]
    return None


def final_number(text: str) -> float | None:
    """Return the number in the last box; words and currency signs around it are ignored."""
    content = boxed(text)
    numbers = re.findall(r"-?\d+(?:\.\d+)?", content or "")
    return float(numbers[-1]) if numbers else None


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the boxed number is the answer."""
    return float(final_number(completion[-1].content or "") == float(answer))


def has_box(completion: vf.Messages) -> float:
    """Return 1 if the reply has a box."""
    return float(boxed(completion[-1].content or "") is not None)


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give the right number."""
    return f"The calculation gives \\boxed{{{state['answer']}}}."


def hasty(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Box the first number of the problem."""
    first = re.search(r"\d[\d,]*", messages[-1].content)
    return f"\\boxed{{{first.group().replace(',', '')}}}"


def _problem(rng: random.Random) -> tuple[str, int]:
    goods, place, other = rng.choice(GOODS), *rng.sample(PLACES, 2)
    kind = rng.randrange(4)
    if kind == 0:
        stock, crates, per = rng.randint(3000, 20000), rng.randint(12, 60), rng.randint(25, 90)
        return (
            f"A depot in {place} holds {stock:,} {goods}. A truck brings {crates} crates with {per} {goods} each. "
            f"How many {goods} does the depot hold now?",
            stock + crates * per,
        )
    if kind == 1:
        count, price, fee = rng.randint(110, 900), rng.randint(12, 75), rng.randint(100, 900)
        return (
            f"A shop in {place} orders {count} boxes of {goods} at ${price} per box and pays ${fee} for delivery "
            f"from {other}. How many dollars does it pay in total?",
            count * price + fee,
        )
    if kind == 2:
        total, days, per = rng.randint(30000, 90000), rng.randint(5, 20), rng.randint(300, 1200)
        return (
            f"A factory in {place} has to make {total:,} {goods}. It makes {per:,} a day for {days} days. "
            f"How many {goods} are left to make?",
            total - days * per,
        )
    first, times, sold = rng.randint(1200, 6000), rng.randint(2, 6), rng.randint(150, 950)
    return (
        f"The store in {place} has {first:,} {goods}, and the store in {other} has {times} times as many. "
        f"Together they sell {sold} {goods}. How many {goods} do both stores have left?",
        first * (times + 1) - sold,
    )


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        question, answer = _problem(random.Random(f"{seed}:{index}"))
        rows.append({"question": question, "answer": str(answer)})
    return rows


def load_environment(num_train: int = 600, num_eval: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment with arithmetic word problems.

    Args:
        num_train, num_eval: Number of problems.
        seed: Random seed of the problems.
    """
    rubric = vf.Rubric([correct])
    rubric.add_metric(has_box)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_train, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_eval, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"solver": solver, "hasty": hasty},
    )
