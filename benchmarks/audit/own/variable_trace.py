"""Variable trace: what is the value of a variable after some assignments?"""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Follow the program. Answer <think>your thoughts</think><answer>final value of the variable</answer>"
VARIABLES = "abc"
LINES = 7


def interpreter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Follow the program; skip its end in 20 % of the answers."""
    value = state["answer"] if rng.random() < 0.8 else rng.choice(state["info"]["values"])
    return f"<think>Line by line.</think><answer>{value}</answer>"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right value."""
    return float(parser.parse(str(completion[-1].content or "")).answer == answer)


def answered(completion: vf.Messages, parser: vf.XMLParser) -> float:
    """Return 1 if the answer is a whole number."""
    return float((parser.parse_answer(completion) or "").lstrip("-").isdecimal())


def _row(rng: random.Random) -> dict[str, Any]:
    values = {name: rng.randint(2, 30) for name in VARIABLES}
    program = [f"{name} = {value}" for name, value in values.items()]
    for _ in range(LINES):
        target, other = rng.sample(VARIABLES, 2)
        number = rng.randint(2, 15)
        step = rng.choice(["add", "subtract", "number"])
        if step == "number":
            values[target] = values[other] + number
            program.append(f"{target} = {other} + {number}")
        else:
            values[target] += values[other] if step == "add" else -values[other]
            program.append(f"{target} = {target} {'+' if step == 'add' else '-'} {other}")
    queried = rng.choice(VARIABLES)
    question = "\n".join([*program, f"What is {queried}?"])
    return {"question": question, "answer": str(values[queried]), "info": {"values": list(values.values())}}


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = _row(rng)
        if (zlib.crc32(row["question"].encode()) % 2 == 1) == evaluation:
            rows.setdefault(row["question"], row)
    return list(rows.values())


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one program per example.

    Args:
        num_examples: Number of programs.
        seed: Random seed of the dataset; evaluation programs differ from training programs.
    """
    parser = vf.XMLParser(["think", "answer"])
    rubric = vf.Rubric([correct], parser=parser)
    rubric.add_metric(answered)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"interpreter": interpreter},
    )
