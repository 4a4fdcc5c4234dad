"""Text edits: carry out two editing instructions on a short text, in order."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Carry out the instructions in order. Reply with the edited text only."
WORDS = """
    amber basket candle dragon ember falcon garden harbor island jacket kettle ladder marble needle orchard pepper quarry
    rabbit saddle tunnel umbrella velvet walnut yellow zipper anchor bottle copper desert engine feather guitar hammer
    insect jungle kitten lantern meadow nickel oyster pillow quiver ribbon silver timber violet window blanket cottage
""".split()


def upper_last(words: list[str]) -> list[str]:
    return [*words[:-1], words[-1].upper()]


EDITS = {
    "Reverse the order of the words.": lambda words: words[::-1],
    "Sort the words alphabetically.": lambda words: sorted(words, key=str.lower),
    "Remove the first word.": lambda words: words[1:],
    "Remove the last word.": lambda words: words[:-1],
    "Write the last word in capital letters.": upper_last,
    "Write the first word twice.": lambda words: [words[0], *words],
    "Swap the first and the last word.": lambda words: [words[-1], *words[1:-1], words[0]],
    "Keep only every second word, starting with the first.": lambda words: words[::2],
    "Add an exclamation mark to every word.": lambda words: [f"{word}!" for word in words],
}


def same_text(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the reply is the edited text; the amount of white space does not matter."""
    return float(str(completion[-1].content or "").split() == answer.split())


def editor(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Carry out both instructions."""
    return state["answer"]


def half_done(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Carry out the first instruction only."""
    return " ".join(EDITS[state["info"]["edits"][0]](state["info"]["text"].split()))


def make_row(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    words = rng.sample(WORDS, rng.randint(5, 8))
    edits = rng.sample(sorted(EDITS), 2)
    result = EDITS[edits[1]](EDITS[edits[0]](words))
    text = " ".join(words)
    question = f"Text: {text}\n1. {edits[0]}\n2. {edits[1]}"
    return {"question": question, "answer": " ".join(result), "info": {"text": text, "edits": edits}}


def make_rows(count: int, seed: int) -> list[dict[str, Any]]:
    return [make_row(seed + index) for index in range(count)]


def load_environment(num_train: int = 600, num_eval: int = 150, seed: int = 42) -> vf.Environment:
    """Return an environment with texts to edit.

    Args:
        num_train: Number of training examples.
        num_eval: Number of evaluation examples.
        seed: Random seed; evaluation uses another one.
    """
    eval_seed = seed + 500
    return vf.SingleTurnEnv(
        dataset=lambda: make_rows(num_train, seed),
        eval_dataset=lambda: make_rows(num_eval, eval_seed),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([same_text]),
        policies={"editor": editor, "half_done": half_done},
    )
