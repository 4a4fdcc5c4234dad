"""Letter sort: write the letters of a word in alphabetical order."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Sort the letters from a to z. Answer <think>your thoughts</think><answer>sorted letters</answer>"
CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"


def sorter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Sort; exchange two neighbors in 30 % of the answers."""
    letters = sorted(messages[-1].content)
    if rng.random() < 0.3:
        place = rng.randrange(len(letters) - 1)
        letters[place], letters[place + 1] = letters[place + 1], letters[place]
    return f"<think>{' '.join(sorted(set(letters)))}</think><answer>{''.join(letters)}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right order of the right letters."""
    return float(parser.parse_answer(completion) == answer)


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        word = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(3, 5)))
        if (zlib.crc32(word.encode()) % 2 == 1) == evaluation and list(word) != sorted(word):
            rows[word] = {"question": word, "answer": "".join(sorted(word))}
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one invented word per example.

    The reward is 1 for the right answer and up to 0.2 for the format, 0 to 1.2 in all.

    Args:
        num_examples: Number of words.
        seed: Random seed of the dataset; evaluation words differ from training words.
    """
    parser = vf.XMLParser(["think", "answer"])
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(correct, weight=1.0)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2, name="format")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"sorter": sorter},
    )
