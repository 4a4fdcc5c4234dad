"""Step numbers: list the multiples of a number in a range."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "List the numbers, separated by commas: <answer>numbers</answer>"


def stepper(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Count in steps; miss the first number in 10 % of the answers."""
    numbers = state["answer"].split(", ")
    return f"<answer>{', '.join(numbers[rng.random() < 0.1 :])}</answer>"


def f1(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return the harmonic mean of precision and recall of the listed numbers."""
    given = {part.strip() for part in (parser.parse_answer(completion) or "").split(",")}
    right = set(answer.split(", "))
    return 2 * len(given & right) / (len(given) + len(right))


def _row(rng: random.Random) -> dict[str, Any]:
    step, count = rng.randint(3, 9), rng.randint(2, 5)
    first = step * rng.randint(3, 24)
    low, high = first - rng.randint(1, step - 1), first + step * (count - 1) + rng.randint(1, step - 1)
    numbers = range(first, high, step)
    return {"question": f"Multiples of {step} from {low} to {high}.", "answer": ", ".join(map(str, numbers))}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with one range per example, with two to five right numbers. The reward is 0 to 1.

    Args:
        num_examples: Number of ranges, at most 5000.
        seed: Random seed of the dataset; evaluation ranges differ from training ranges.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([f1], parser=parser),
        policies={"stepper": stepper},
    )
