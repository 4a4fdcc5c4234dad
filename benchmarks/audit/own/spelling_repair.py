"""Spelling repair: write a sentence without its typing errors."""

from __future__ import annotations

import random
import zlib
from difflib import SequenceMatcher
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Write the sentence without typing errors, and nothing else."
ADJECTIVES = "ancient careful distant friendly golden hungry modern narrow patient silent stubborn wooden".split()
PEOPLE = "baker captain doctor farmer gardener minister painter plumber sailor teacher traveler waiter".split()
VERBS = "carried described discovered examined followed noticed painted repaired returned watched".split()
THINGS = "basket blanket bridge carriage cupboard engine hammer ladder lantern machine mirror statue".split()
PLACES = "behind the station, beside the river, near the museum, outside the village, under the bridge".split(", ")
TYPOS = 2


def exchanged(word: str, rng: random.Random) -> str:
    """Return the word with two different neighboring letters exchanged."""
    places = [place for place in range(len(word) - 1) if word[place] != word[place + 1]]
    place = rng.choice(places)
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def editor(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Correct the sentence; miss one error in 40 % of the answers."""
    if rng.random() < 0.6:
        return state["answer"]
    words, place = state["answer"].split(), rng.choice(state["info"]["places"])
    words[place] = messages[-1].content.split()[place]
    return " ".join(words)


def likeness(completion: vf.Messages, answer: str) -> float:
    """Return how far the words of the reply are those of the right sentence, 0 to 1."""
    given = str(completion[-1].content or "").split()
    return SequenceMatcher(None, given, answer.split(), autojunk=False).ratio()


def _row(rng: random.Random) -> dict[str, Any]:
    sentence = (
        f"The {rng.choice(ADJECTIVES)} {rng.choice(PEOPLE)} {rng.choice(VERBS)} the {rng.choice(ADJECTIVES)} "
        f"{rng.choice(THINGS)} {rng.choice(PLACES)}."
    )
    words = sentence.split()
    places = rng.sample([place for place, word in enumerate(words) if len(word) > 5 and word.isalpha()], TYPOS)
    for place in places:
        words[place] = exchanged(words[place], rng)
    return {"question": " ".join(words), "answer": sentence, "info": {"places": places}}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["answer"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["answer"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one sentence per example.

    Args:
        num_examples: Number of sentences.
        seed: Random seed of the dataset; evaluation sentences differ from training sentences.
    """
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([likeness]),
        policies={"editor": editor},
    )
