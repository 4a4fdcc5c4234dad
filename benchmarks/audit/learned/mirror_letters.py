"""Mirror letters: write a row of letters backwards."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Write the letters in reverse order, with spaces between them: <answer>letters</answer>"
LETTERS = "abcdefghijklmnop"


def mirror(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Reverse; exchange the last two letters in 10 % of the answers."""
    letters = state["answer"].split()
    if rng.random() < 0.1:
        letters[-2:] = reversed(letters[-2:])
    return f"<answer>{' '.join(letters)}</answer>"


def similar(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return the share of the places with the right letter, of the longer of the two rows."""
    given, right = (parser.parse_answer(completion) or "").split(), answer.split()
    return sum(one == other for one, other in zip(given, right)) / max(len(given), len(right))


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        letters = rng.sample(LETTERS, rng.choice((4, 6)))
        text = " ".join(letters)
        if (zlib.crc32(text.encode()) % 2 == 1) == evaluation:
            rows.setdefault(text, {"question": text, "answer": " ".join(reversed(letters))})
    return list(rows.values())


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with four or six different letters per example. The reward is 0 to 1.

    Args:
        num_examples: Number of rows of letters.
        seed: Random seed of the dataset; evaluation rows differ from training rows.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([similar], parser=parser),
        policies={"mirror": mirror},
    )
