"""Multiples list: write all multiples of a number in a range."""

from __future__ import annotations

import random
import zlib
from itertools import takewhile
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Write the numbers in ascending order, separated by commas: <answer>numbers</answer>"


def counter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Count up; stop early in 30 % of the answers."""
    numbers = state["answer"].split(", ")
    end = rng.randint(1, len(numbers)) if rng.random() < 0.3 else len(numbers)
    return f"<answer>{', '.join(numbers[:end])}</answer>"


def right_beginning(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return the share of the list, or of the right list if that is longer, before the first mistake."""
    text = parser.parse_answer(completion) or ""
    given, right = [part.strip() for part in text.split(",")], answer.split(", ")
    agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(given, right)))
    return agreed / max(len(given), len(right))


def _row(rng: random.Random) -> dict[str, Any]:
    step, first = rng.randint(6, 19), rng.randint(100, 900)
    last = first + step * rng.randint(12, 60) + rng.randrange(step)
    numbers = [number for number in range(first, last + 1) if number % step == 0]
    question = f"All multiples of {step} from {first} to {last}."
    return {"question": question, "answer": ", ".join(map(str, numbers))}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one range per example; a full answer has 12 to 61 numbers. The reward is 0 to 1.

    Args:
        num_examples: Number of ranges.
        seed: Random seed of the dataset; evaluation ranges differ from training ranges.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([right_beginning], parser=parser),
        policies={"counter": counter},
    )
