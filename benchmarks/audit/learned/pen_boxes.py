"""Pen boxes: write the product of two numbers with its calculation."""

from __future__ import annotations

import random
import re
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "How many are there? Show the calculation in one line: <answer>number * number = result</answer>"
THINGS = ("pens", "eggs", "nuts", "cups")
MAX_CHARS = 30


def packer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Multiply; be off by ten in 5 % of the answers."""
    calculation, _, result = state["answer"].partition(" = ")
    return f"<answer>{calculation} = {int(result) + 10 * (rng.random() < 0.05)}</answer>"


def line(completion: vf.Messages, parser: vf.XMLParser) -> str:
    """Return the line of the calculation; empty if there is other text in it, or if it is too long for one."""
    text = (parser.parse_answer(completion) or "").strip()
    return text if len(text) <= MAX_CHARS and re.fullmatch("[0-9*= ]+", text) else ""


def calculation(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 for a calculation with both numbers of the question and an equals sign."""
    text = line(completion, parser)
    numbers = re.findall("[0-9]+", text)
    return float("=" in text and all(str(number) in numbers for number in info["numbers"]))


def result(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for one product with the right result."""
    product = re.fullmatch(r"[0-9]+ \* [0-9]+ = ([0-9]+)", line(completion, parser))
    return float(bool(product) and product[1] == answer.rpartition("= ")[2])


def _row(rng: random.Random) -> dict[str, Any]:
    boxes, each = rng.sample(range(2, 21), 2)
    question = f"{boxes} boxes, {each} {rng.choice(THINGS)} in each."
    return {"question": question, "answer": f"{boxes} * {each} = {boxes * each}", "info": {"numbers": [boxes, each]}}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with one product per example.

    The reward is 0.6 for the calculation and 0.4 for its result, 0 to 1 in all.

    Args:
        num_examples: Number of products, at most 600.
        seed: Random seed of the dataset; evaluation products differ from training products.
    """
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([calculation, result], [0.6, 0.4], parser=parser),
        policies={"packer": packer},
    )
