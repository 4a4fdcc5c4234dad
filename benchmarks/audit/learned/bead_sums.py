"""Bead sums: add two numbers of beads."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "How many beads are there? Answer <think>your thoughts</think><answer>number</answer>"
COLORS = ("red", "blue", "green", "white")


def beader(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Add; be off by one in 10 % of the answers."""
    first, second = state["info"]["beads"]
    return f"<think>{first} + {second}</think>\n<answer>{first + second + (rng.random() < 0.1)}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right number."""
    return float(parser.parse_answer(completion) == answer)


def _row(rng: random.Random) -> dict[str, Any]:
    beads, colors = [rng.randint(2, 30), rng.randint(2, 30)], rng.sample(COLORS, 2)
    return {
        "question": f"{beads[0]} {colors[0]} beads and {beads[1]} {colors[1]} beads.",
        "answer": str(sum(beads)),
        "info": {"beads": beads},
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
    """Return an environment with one sum per example.

    The reward is 1 for the right number and up to 0.2 for the format, 0 to 1.2 in all.

    Args:
        num_examples: Number of sums, at most 4000.
        seed: Random seed of the dataset; evaluation sums differ from training sums.
    """
    parser = vf.XMLParser(["think", "answer"])
    rubric = vf.Rubric([correct], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2, name="format")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"beader": beader},
    )
