"""Table products: multiply two numbers up to 20."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Multiply. Answer <product>number</product>"
SMALLEST, LARGEST = 2, 20


def pupil(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Know the product; take the next multiple in 25 % of the answers."""
    a, b = state["info"]["factors"]
    return f"<product>{a * b + (a if rng.random() < 0.25 else 0)}</product>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right product."""
    return float(parser.parse_answer(completion) == answer)


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    pairs = [[a, b] for a in range(SMALLEST, LARGEST + 1) for b in range(SMALLEST, LARGEST + 1)]
    rng.shuffle(pairs)
    return [{"question": f"{a} times {b}", "answer": str(a * b), "info": {"factors": [a, b]}} for a, b in pairs[:count]]


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one product per example.

    Args:
        num_examples: Number of products, at most 361.
        seed: Random seed of the dataset; the evaluation products are drawn with a seed of their own.
    """
    parser = vf.XMLParser(["product"], answer_field="product")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"pupil": pupil},
    )
