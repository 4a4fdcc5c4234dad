"""Anagram words: bring the letters of three words into their right order."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "The letters of each word are mixed. Write the three words in the same order: <words>three words</words>"
)
WORDS = set(
    """
    anchor banana basket blanket bottle bridge bucket butter button camera candle carpet cheese chimney circus coffee
    compass copper cousin curtain diamond dolphin donkey dragon feather finger flower forest garlic giraffe guitar hammer
    helmet honey island jacket jungle kettle kitchen ladder lantern lawyer lemon lizard magnet meadow mirror monkey mountain
    muffin napkin needle ocean octopus oyster palace parrot peanut pencil penguin pepper piano pillow pirate planet pocket
    potato pumpkin puzzle rabbit ribbon saddle sailor salmon scissors shadow spider squirrel summer sunset tailor teapot
    thunder ticket tomato trumpet tunnel turtle umbrella uncle vanilla velvet village violin wagon walnut whisper window
    winter yogurt zipper
    """.split()
)


def mixed(word: str, rng: random.Random) -> str:
    """Return the letters of a word in another order."""
    letters = list(word)
    while "".join(letters) == word:
        rng.shuffle(letters)
    return "".join(letters)


def speller(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Find every word in the list of words; give up on one in 30 % of the answers."""
    known = {"".join(sorted(word)): word for word in sorted(WORDS)}
    parts = messages[-1].content.split()
    found = [known["".join(sorted(part))] for part in parts]
    if rng.random() < 0.3:
        place = rng.randrange(len(parts))
        found[place] = parts[place]
    return f"<words>{' '.join(found)}</words>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the three right words."""
    return float((parser.parse_answer(completion) or "").split() == answer.split())


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng, pool = random.Random(seed), list(WORDS)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        words = rng.sample(pool, 3)
        key = " ".join(sorted(words))
        if (zlib.crc32(key.encode()) % 2 == 1) == evaluation:
            row = {"question": " ".join(mixed(word, rng) for word in words), "answer": " ".join(words)}
            rows.setdefault(key, row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with three words per example.

    Args:
        num_examples: Number of rows.
        seed: Random seed of the dataset; evaluation rows differ from training rows.
    """
    parser = vf.XMLParser(["words"], answer_field="words")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"speller": speller},
    )
