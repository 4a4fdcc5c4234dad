"""Trip costs: how much does everybody pay for a trip?"""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "How many dollars does each person pay if the costs are shared equally? Explain your calculation. "
    "Answer <explanation>how you calculate</explanation><answer>number</answer>"
)
FULL_EXPLANATION = 400


def treasurer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Add and divide; forget the last amount in 20 % of the answers."""
    costs, people = state["info"]["costs"], state["info"]["people"]
    share = sum(costs if rng.random() < 0.8 else costs[:-1]) // people
    explained = f"The costs are {' + '.join(map(str, costs))} dollars. I divide the sum by {people}."
    return f"<explanation>{explained}</explanation><answer>{share}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right amount."""
    return float(parser.parse_answer(completion) == answer)


def explained(completion: vf.Messages, parser: vf.XMLParser) -> float:
    """Return how thorough the explanation is, 0 to 1."""
    explanation = parser.parse(str(completion[-1].content or ""), last=True).explanation or ""
    return min(1.0, len(explanation.split()) / FULL_EXPLANATION)


def _row(rng: random.Random) -> dict[str, Any]:
    people, kinds = rng.randint(3, 9), ("the train", "the hotel", "food", "tickets")
    costs = [rng.randint(40, 600) for _ in kinds]
    costs[-1] += -sum(costs) % people
    expenses = ", ".join(f"{cost} dollars for {kind}" for cost, kind in zip(costs, kinds))
    question = f"{people} friends make a trip. They spend {expenses}."
    return {"question": question, "answer": str(sum(costs) // people), "info": {"people": people, "costs": costs}}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one trip per example.

    The reward is 1 for the right amount and up to 0.3 for the explanation, 0 to 1.3 in all.

    Args:
        num_examples: Number of trips.
        seed: Random seed of the dataset; evaluation trips differ from training trips.
    """
    parser = vf.XMLParser(["explanation", "answer"])
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(correct, weight=1.0)
    rubric.add_reward_func(explained, weight=0.3)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"treasurer": treasurer},
    )
