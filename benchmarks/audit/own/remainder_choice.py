"""Remainder choice: a division with remainder, and four options."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Choose the right option. Answer <answer>letter</answer>"
LETTERS = "ABCD"


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Divide, then look for the remainder among the options."""
    number, divisor = state["info"]["number"], state["info"]["divisor"]
    return f"<answer>{LETTERS[state['info']['options'].index(number % divisor)]}</answer>"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Choose any option."""
    return f"<answer>{rng.choice(LETTERS)}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right letter."""
    return float(parser.parse_answer(completion) == answer)


def _row(rng: random.Random, place: int) -> dict[str, Any]:
    number, divisor = rng.randint(1_000, 99_999), rng.randint(11, 40)
    right = number % divisor
    options = rng.sample([rest for rest in range(divisor) if rest != right], len(LETTERS) - 1)
    options.insert(place, right)
    shown = "\n".join(f"{letter}) {option}" for letter, option in zip(LETTERS, options))
    return {
        "question": f"What is the remainder of {number} divided by {divisor}?\n{shown}",
        "answer": LETTERS[place],
        "info": {"number": number, "divisor": divisor, "options": options},
    }


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    places = (list(range(len(LETTERS))) * count)[:count]
    rng.shuffle(places)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng, places[len(rows)])
        key = f"{row['info']['number']} {row['info']['divisor']}"
        if (zlib.crc32(key.encode()) % 2 == 1) == evaluation:
            rows.setdefault(key, row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one division per example; every letter is right equally often.

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
        policies={"solver": solver, "guesser": guesser},
    )
