"""Letter count: how often does a letter occur in a random word?"""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Count how often the letter occurs in the word. Answer <count>number</count>"
MAX_COUNT = 4


def careful(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give the right count in 80 % of the answers, else one too few or too many."""
    error = rng.choice([-1, 1]) if rng.random() < 0.2 else 0
    return f"<count>{min(MAX_COUNT, max(0, int(state['answer']) + error))}</count>"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Answer with a random count."""
    return f"<count>{rng.randint(0, MAX_COUNT)}</count>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right number."""
    return float(parser.parse_answer(completion) == answer)


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        letter, occurrences = rng.choice("abcdefghijklmnopqrstuvwxyz"), rng.randint(0, MAX_COUNT)
        others = [rng.choice("abcdefghijklmnopqrstuvwxyz".replace(letter, "")) for _ in range(rng.randint(3, 6))]
        letters = [letter] * occurrences + others
        rng.shuffle(letters)
        row = {"question": f"{letter} in {''.join(letters)}", "answer": str(occurrences)}
        rows.append({**row, "info": {"letters": len(letters)}})
    return rows


def load_environment(num_examples: int = 2000, seed: int = 0) -> vf.Environment:
    """Return an environment with one question per example.

    Args:
        num_examples: Number of questions.
        seed: Random seed of the dataset; evaluation questions differ from training questions.
    """
    parser = vf.XMLParser(["count"], answer_field="count")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(correct, weight=1.0)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2, name="format")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"careful": careful, "guesser": guesser},
    )
