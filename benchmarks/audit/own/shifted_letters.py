"""Shifted letters: read a text whose letters were all moved by the same number of places."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Write the original text: <text>original text</text>"
WORDS = (
    "anchor basket bridge candle carpet circle copper cotton desert dinner engine fabric feather finger forest garden "
    "guitar hammer harbor helmet island jacket kettle ladder lantern letter magnet market meadow mirror needle orange "
    "palace pencil pepper pillow planet pocket rabbit ribbon saddle shadow silver spider stone summer temple ticket tunnel "
    "turtle valley velvet violin walnut window winter"
).split()
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
MAX_LENGTH = 200


def shift(text: str, places: int) -> str:
    """Return the text with every letter moved forward in the alphabet."""
    return text.translate(str.maketrans(ALPHABET, ALPHABET[places:] + ALPHABET[:places]))


def distance(a: str, b: str) -> int:
    """Return the least number of inserted, deleted and replaced characters between two texts."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def decoder(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Move the letters back, with one wrong letter in half of the answers."""
    text = state["answer"]
    if rng.random() < 0.5:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice(ALPHABET) + text[place + 1 :]
    return f"<text>{text}</text>"


def likeness(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the original text, less for every edit that is missing; 0 if half of the characters are wrong."""
    text = (parser.parse_answer(completion) or "")[:MAX_LENGTH]
    return max(0.0, 1 - 2 * distance(text, answer) / len(answer))


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        text, places = " ".join(rng.sample(WORDS, rng.randint(3, 5))), rng.randint(2, 24)
        if (zlib.crc32(text.encode()) % 2 == 1) == evaluation:
            question = f"Every letter was moved {places} places forward in the alphabet: {shift(text, places)}"
            rows.setdefault(text, {"question": question, "answer": text})
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one text per example. The reward is 0 to 1, with partial credit by edit distance.

    Args:
        num_examples: Number of texts.
        seed: Random seed of the dataset; evaluation texts differ from training texts.
    """
    parser = vf.XMLParser(["text"], answer_field="text")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([likeness], parser=parser),
        policies={"decoder": decoder},
    )
