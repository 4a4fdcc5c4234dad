"""First letter: choose a word that begins with a letter."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Give one of the words that begins with the letter: <answer>word</answer>"
WORDS = {
    "b": ("bag", "bed", "bell", "book", "bus"), "c": ("cake", "car", "cat", "coat", "cup"),
    "f": ("fan", "fish", "fly", "fork", "fox"), "h": ("hall", "hat", "hen", "hill", "horn"),
    "l": ("lake", "lamp", "leaf", "line", "lock"), "s": ("salt", "sea", "shoe", "sock", "sun"),
}  # fmt: skip
LETTERS, EACH = 3, 3


def reader(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Give any of the right words; any word at all in 5 % of the answers."""
    right, words = state["info"]["right"], state["info"]["words"]
    return f"<answer>{rng.choice(words if rng.random() < 0.05 else right)}</answer>"


def correct(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 for a word of the question that begins with the letter."""
    return float(parser.parse_answer(completion) in info["right"])


def _row(rng: random.Random) -> dict[str, Any]:
    letters = rng.sample(list(WORDS), LETTERS)
    groups = {letter: rng.sample(WORDS[letter], EACH) for letter in letters}
    words = [word for group in groups.values() for word in group]
    rng.shuffle(words)
    right = groups[letters[0]]
    question = f"Letter: {letters[0]}. Words: {' '.join(words)}."
    return {"question": question, "answer": rng.choice(right), "info": {"right": right, "words": words}}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with a letter and nine words per example; three of them are right. The reward is 1 or 0.

    Args:
        num_examples: Number of questions.
        seed: Random seed of the dataset; evaluation questions differ from training questions.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"reader": reader},
    )
