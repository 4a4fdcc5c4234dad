"""Percent quiz: four options, one of them is right."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Choose the right option. Think first, then answer <answer>letter</answer>"
LETTERS = "ABCD"
SCENES = (
    "{percent}% of the {base} seats in a theatre are taken. How many is that?",
    "A school has {base} pupils, and {percent}% of them come by bicycle. How many come by bicycle?",
    "What is {percent}% of {base}?",
    "Of {base} letters, {percent}% arrived on the next day. How many letters were that?",
)


def letter(text: str) -> str | None:
    """Return the letter of an option: "b", "(B)" and "B." are all B."""
    found = re.fullmatch(r"\W*([A-Da-d])\W*", text)
    return found[1].upper() if found else None


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right letter."""
    return float(parser.parse_answer(completion) == answer)


def answered(completion: vf.Messages, parser: vf.XMLParser) -> float:
    """Return 1 if the answer is a letter."""
    return float(parser.parse_answer(completion) is not None)


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Work it out, and look for the result among the options."""
    info = state["info"]
    result = info["base"] * info["percent"] // 100
    return f"{result} is right.\n<answer>{LETTERS[info['options'].index(result)]}</answer>"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Choose any letter."""
    return f"<answer>{rng.choice(LETTERS)}</answer>"


def _options(right: int, base: int) -> list[int]:
    """Return the right result with three that are five or ten per cent off, in order of size."""
    slip = max(1, base // 100)
    mistakes = [right - 5 * slip, right + 5 * slip, right + 10 * slip]
    return sorted([right, *mistakes])


def _rows(count: int, seed: str, bases: list[int]) -> list[dict[str, Any]]:
    pool = [(base, percent) for base in bases for percent in range(10, 95, 5)]
    rng = random.Random(seed)
    rows = []
    for base, percent in rng.sample(pool, min(count, len(pool))):
        right = base * percent // 100
        options = _options(right, base)
        listed = "\n".join(f"{name}) {option}" for name, option in zip(LETTERS, options))
        rows.append(
            {
                "question": f"{rng.choice(SCENES).format(base=base, percent=percent)}\n{listed}",
                "answer": LETTERS[options.index(right)],
                "info": {"base": base, "percent": percent, "options": options},
            }
        )
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with questions about percentages; every third number is for evaluation only.

    Args:
        num_examples: Number of questions in each dataset.
        seed: Random seed of the questions.
    """
    bases = list(range(100, 1500, 20))
    held_out = bases[::3]
    trained = [base for base in bases if base not in held_out]
    parser = vf.XMLParser(["answer"], extract_fn=letter)
    rubric = vf.Rubric([correct], parser=parser)
    rubric.add_metric(answered)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", trained),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", held_out),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"solver": solver, "guesser": guesser},
    )
