"""Meal reviews: is a review good, bad or mixed, and which words show it?"""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Is the review good, bad or mixed? Quote words of it that show this. "
    "Answer <quote>two to six words</quote><answer>good, bad or mixed</answer>"
)
GOOD = ("fresh", "tasty", "friendly", "warm", "fast", "cheap", "clean", "fine")
BAD = ("stale", "salty", "rude", "cold", "slow", "costly", "dirty", "burnt")
THINGS = ("soup", "bread", "rice", "fish", "cake", "salad", "coffee", "waiter", "cook", "menu", "table", "room")
GOOD_PARTS = {"good": (3, 4), "mixed": (2,), "bad": (0, 1)}
LONGEST = 6


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return text.replace(",", " ").split()


def critic(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Quote what agrees with the verdict; confuse good and mixed in 5 % of the answers."""
    verdict, parts = state["answer"], state["info"]["review"].split(", ")
    fitting = [part for part in parts if verdict == "mixed" or (part.split()[0] in GOOD) == (verdict == "good")]
    given = {"good": "mixed", "mixed": "good"}.get(verdict, verdict) if rng.random() < 0.05 else verdict
    return f"<quote>{rng.choice(fitting)}</quote>\n<answer>{given}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right verdict."""
    return float(parser.parse_answer(completion) == answer)


def quoted(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 for a short quote with at least two words of the review, or 0.5 for one."""
    quote = words(parser.parse(str(completion[-1].content or "")).quote or "")
    return min(1.0, len(set(quote) & set(words(info["review"]))) / 2) if len(quote) <= LONGEST else 0.0


def _row(rng: random.Random) -> dict[str, Any]:
    verdict = rng.choice(list(GOOD_PARTS))
    count = rng.choice(GOOD_PARTS[verdict])
    qualities = rng.sample(GOOD, count) + rng.sample(BAD, 4 - count)
    rng.shuffle(qualities)
    review = ", ".join(f"{quality} {thing}" for quality, thing in zip(qualities, rng.sample(THINGS, 4), strict=True))
    return {"question": review, "answer": verdict, "info": {"review": review}}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with one review per example.

    The reward is 0.65 for the verdict and up to 0.35 for the quote, 0 to 1 in all.

    Args:
        num_examples: Number of reviews.
        seed: Random seed of the dataset; evaluation reviews differ from training reviews.
    """
    parser = vf.XMLParser(["quote", "answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct, quoted], [0.65, 0.35], parser=parser),
        policies={"critic": critic},
    )
