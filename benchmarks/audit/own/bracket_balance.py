"""Bracket balance: is every bracket of a short string closed in the right order?"""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Is the string of brackets balanced? Answer <answer>yes</answer> or <answer>no</answer>"
PAIRS = {"(": ")", "[": "]", "{": "}"}


def balanced(text: str) -> bool:
    """Return whether all brackets are closed in the right order."""
    expected: list[str] = []
    for sign in text:
        if sign in PAIRS:
            expected.append(PAIRS[sign])
        elif not expected or expected.pop() != sign:
            return False
    return not expected


def draw(rng: random.Random, pairs: int) -> str:
    """Return a random balanced string."""
    if pairs == 0:
        return ""
    inside = rng.randint(0, pairs - 1)
    opening = rng.choice(list(PAIRS))
    return f"{opening}{draw(rng, inside)}{PAIRS[opening]}{draw(rng, pairs - 1 - inside)}"


def spoil(text: str, rng: random.Random) -> str:
    """Return the string with one bracket replaced by another kind, so that it is no longer balanced."""
    place = rng.randrange(len(text))
    kinds = list(PAIRS) if text[place] in PAIRS else list(PAIRS.values())
    kinds.remove(text[place])
    return text[:place] + rng.choice(kinds) + text[place + 1 :]


def checker(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Keep a stack of open brackets."""
    return f"<answer>{'yes' if balanced(messages[-1].content) else 'no'}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right word."""
    return float(parser.parse_answer(completion) == answer)


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    answers = (["yes", "no"] * count)[:count]
    rng.shuffle(answers)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        answer, text = answers[len(rows)], draw(rng, rng.randint(5, 9))
        if answer == "no":
            text = spoil(text, rng)
        if (zlib.crc32(text.encode()) % 2 == 1) == evaluation and text not in rows:
            rows[text] = {"question": text, "answer": answer}
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one string per example; half of the strings are balanced.

    Args:
        num_examples: Number of strings.
        seed: Random seed of the dataset; evaluation strings differ from training strings.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"checker": checker},
    )
