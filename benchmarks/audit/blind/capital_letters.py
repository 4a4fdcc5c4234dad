"""Capital letters: write down the capital letters of a line, in their order; some lines have none."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Write down the capital letters of the line in their order, without spaces: <letters>QBT</letters>. If the line has no "
    "capital letter, leave the tags empty: <letters></letters>"
)
SYLLABLES = "ba ce di fo gu ha je ki lo mu na pe qui ro su ta ve wi xo yu za bri cle dro fla gre plo sti tra".split()


def capitals(text: str) -> str:
    """Return the capital letters of a text."""
    return "".join(letter for letter in text if letter.isupper())


def exact(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the reply has exactly the capital letters."""
    return float(parser.parse_answer(completion) == answer)


def reader(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Write all capital letters."""
    return f"<letters>{capitals(messages[-1].content)}</letters>"


def initials(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Look only at the first letter of each word."""
    return f"<letters>{capitals(''.join(word[0] for word in messages[-1].content.split()))}</letters>"


def _line(rng: random.Random) -> str:
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(rng.randint(4, 8))]
    line = " ".join(words)
    if rng.random() < 0.2:
        return line
    places = [place for place, letter in enumerate(line) if letter != " "]
    chosen = set(rng.sample(places, rng.randint(1, 7)))
    return "".join(letter.upper() if place in chosen else letter for place, letter in enumerate(line))


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    lines = [_line(random.Random(f"{seed}:{index}")) for index in range(count)]
    return [{"question": line, "answer": capitals(line)} for line in lines]


def load_environment(num_examples: int = 600, seed: int = 0) -> vf.Environment:
    """Return an environment with lines of made-up words; a fifth of them has no capital letter.

    Args:
        num_examples: Number of lines for training, and for evaluation.
        seed: Random seed of the lines.
    """
    parser = vf.XMLParser(["letters"], answer_field="letters")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([exact], parser=parser),
        policies={"reader": reader, "initials": initials},
    )
