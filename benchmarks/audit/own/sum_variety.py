"""Sum variety: write a number as a sum of four different numbers, in ways that vary."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Write the number as a sum of four different whole numbers from 1 to 999. Be original: do not use a sum that others would "
    "write. Answer <sum>a + b + c + d</sum>"
)
TERMS = 4


def terms(text: str) -> list[int]:
    """Return the terms of a sum in ascending order; none if the text is no sum of numbers from 1 to 999."""
    parts = [part.strip() for part in text.split("+")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= 3 for part in parts):
        return []
    return sorted(map(int, parts))


class Variety:
    """Rewards for a right sum, and for one that was not given before for the same number."""

    def __init__(self, parser: vf.XMLParser):
        self.parser = parser
        self.given: dict[int, set[str]] = defaultdict(set)

    def right(self, completion: vf.Messages, info: dict[str, Any]) -> float:
        """Return 1 for four different numbers with the right sum."""
        numbers = terms(self.parser.parse_answer(completion) or "")
        valid = len(numbers) == len(set(numbers)) == TERMS and numbers[0] > 0
        return float(valid and sum(numbers) == info["total"])

    def original(self, completion: vf.Messages, info: dict[str, Any]) -> float:
        """Return 1 for a right sum that is new."""
        if not self.right(completion, info):
            return 0.0
        found, known = str(terms(self.parser.parse_answer(completion) or "")), self.given[info["total"]]
        is_new = found not in known
        known.add(found)
        return float(is_new)


def accountant(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Draw three numbers, and compute the fourth."""
    total = state["info"]["total"]
    while True:
        numbers = rng.sample(range(1, total // 4), TERMS - 1)
        last = total - sum(numbers)
        if last not in numbers and last <= 999:
            return f"<sum>{' + '.join(map(str, [*numbers, last]))}</sum>"


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    totals = random.Random(seed).sample(range(200 + evaluation, 1600, 2), count)
    return [
        {"question": f"{total}", "answer": f"{total // 4 - 30} + {total // 4 - 10} + {total // 4 + 11} + "
         f"{total - 3 * (total // 4) + 29}", "info": {"total": total}}
        for total in totals
    ]  # fmt: skip


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one number per example. The reward is 0 to 1.

    Args:
        num_examples: Number of numbers, at most 700.
        seed: Random seed of the dataset; training numbers are even, evaluation numbers odd.
    """
    parser = vf.XMLParser(["sum"], answer_field="sum")
    variety = Variety(parser)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([variety.right, variety.original], [0.5, 0.5], parser=parser),
        policies={"accountant": accountant},
    )
