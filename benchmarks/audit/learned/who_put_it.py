"""Who put it: read two sentences, and say who put a thing in its place."""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Support your answer with a short sentence about what happened, in at most 18 words in all. Then answer "
    "<answer>name</answer>"
)
NAMES = ("Ann", "Ben", "Eve", "Ida", "Kim", "Leo", "Max", "Sam", "Tom", "Zoe")
COLORS = ("black", "white", "green", "brown", "small", "large", "heavy", "clean", "round", "empty")
THINGS = ("coin", "lamp", "book", "bell", "rope", "vase", "clock", "knife", "plate", "spoon")
PLACES = ("hall", "barn", "tent", "shed", "kitchen", "garden", "office", "school", "church", "market")
MAX_WORDS = 18
CREDIT = {0: 0.0, 1: 0.0, 2: 0.5}


def words(text: str) -> list[str]:
    """Return the words of a text, without tags."""
    return re.findall("[a-z]+", re.sub("<[^>]*>", " ", text.lower()))


def witness(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Repeat the sentence that matters, and name the person."""
    name, color, thing, place = state["info"]["fact"]
    return f"{name} put the {color} {thing} in the {place}.\n<answer>{name}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right name."""
    return float(parser.parse_answer(completion) == answer)


def supported(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return 1 for a short reply that refers to the story: it has three of its longer words, or 0.5 for two."""
    given = words(str(completion[-1].content or ""))
    known = {word for word in words(info["story"]) if len(word) > 3}
    return CREDIT.get(len(known & set(given)), 1.0) if len(given) <= MAX_WORDS else 0.0


def _row(rng: random.Random) -> dict[str, Any]:
    facts = list(zip(*(rng.sample(some, 2) for some in (NAMES, COLORS, THINGS, PLACES)), strict=True))
    fact = rng.choice(facts)
    story = " ".join(f"{name} put the {color} {thing} in the {place}." for name, color, thing, place in facts)
    return {
        "question": f"{story} Who put the {fact[2]}?",
        "answer": fact[0],
        "info": {"story": story, "fact": list(fact)},
    }


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with one story of two sentences per example.

    The reward is 0.6 for the right name and 0.4 for the support, 0 to 1 in all.

    Args:
        num_examples: Number of stories.
        seed: Random seed of the dataset; evaluation stories differ from training stories.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct, supported], [0.6, 0.4], parser=parser),
        policies={"witness": witness},
    )
