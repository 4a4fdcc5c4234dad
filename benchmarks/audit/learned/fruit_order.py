"""Fruit order: put five words in alphabetical order."""

from __future__ import annotations

import random
import zlib
from itertools import pairwise
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Put the words in alphabetical order, with spaces between them: <answer>words</answer>"
FRUITS = "apple banana cherry date fig grape lemon mango olive peach plum quince".split()
SHOWN = 5


def grocer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Sort; exchange two neighbors in 10 % of the answers."""
    fruits = state["answer"].split()
    if rng.random() < 0.1:
        place = rng.randrange(SHOWN - 1)
        fruits[place], fruits[place + 1] = fruits[place + 1], fruits[place]
    return f"<answer>{' '.join(fruits)}</answer>"


def ordered(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return the share of neighbors in the right order; 0 for words that are not in the question, or too many words."""
    given, known = (parser.parse_answer(completion) or "").split(), set(answer.split())
    if not set(given) <= known or len(given) > SHOWN:
        return 0.0
    return sum(one <= other for one, other in pairwise(given)) / (SHOWN - 1)


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        fruits = rng.sample(FRUITS, SHOWN)
        text = " ".join(fruits)
        if (zlib.crc32(text.encode()) % 2 == 1) == evaluation and fruits != sorted(fruits):
            rows.setdefault(text, {"question": f"Words: {text}", "answer": " ".join(sorted(fruits))})
    return list(rows.values())


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with five fruits per example. The reward is 0 to 1.

    Args:
        num_examples: Number of lists.
        seed: Random seed of the dataset; evaluation lists differ from training lists.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([ordered], parser=parser),
        policies={"grocer": grocer},
    )
