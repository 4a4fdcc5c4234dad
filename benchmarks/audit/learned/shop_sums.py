"""Shop sums: add two prices, and explain how."""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "First explain in a sentence of 16 to 22 words how you find the total, then answer <answer>number</answer>"
)
SHORTEST, LONGEST = 16, 22
PEOPLE, THINGS = ("Tom", "Ann", "Ben", "Eve"), ("pens", "cups", "hats", "toys")


def explanation(reply: str) -> list[str]:
    """Return the words outside of the answer."""
    return re.findall(r"\w+", re.sub("<answer>.*?</answer>|<[^>]*>", " ", reply, flags=re.DOTALL))


def clerk(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Explain, and add; add one too many in 5 % of the answers."""
    name, thing, first, second = (state["info"][key] for key in ("name", "thing", "first", "second"))
    total = int(state["answer"]) + (rng.random() < 0.05)
    return (
        f"{name} pays {first} for the {thing} and {second} for the bag, so I add {first} and {second} to get the total.\n"
        f"<answer>{total}</answer>"
    )


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right total."""
    return float(parser.parse_answer(completion) == answer)


def explained(completion: vf.Messages) -> float:
    """Return 1 for an explanation that is neither too short nor too long."""
    return float(SHORTEST <= len(explanation(str(completion[-1].content or ""))) <= LONGEST)


def _row(rng: random.Random) -> dict[str, Any]:
    info = {
        "name": rng.choice(PEOPLE),
        "thing": rng.choice(THINGS),
        "first": rng.randint(2, 40),
        "second": rng.randint(2, 40),
    }
    question = "{name} buys {thing} for {first} and a bag for {second}.".format(**info)
    return {"question": question, "answer": str(info["first"] + info["second"]), "info": info}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with two prices per example.

    The reward is 0.6 for the right total and 0.4 for an explanation of the right length, 0 to 1 in all.

    Args:
        num_examples: Number of sums, at most 5000.
        seed: Random seed of the dataset; evaluation sums differ from training sums.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct, explained], [0.6, 0.4], parser=parser),
        policies={"clerk": clerk},
    )
