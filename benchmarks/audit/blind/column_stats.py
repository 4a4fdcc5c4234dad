"""Column statistics: the median, the range or the mode of a column of measurements."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Answer the question about the column of numbers. Write the number in answer tags, for example <answer>17</answer>.\n"
    "Median: with an even number of values, the mean of the two in the middle.\n"
    "Range: the largest value minus the smallest.\n"
    "Mode: the most frequent value; if several are equally frequent, the smallest of them."
)
COLUMNS = ["temperature", "waiting time", "speed", "age", "score", "depth", "rainfall", "weight"]


def median(values: list[int]) -> float:
    return statistics.median(values)


def spread(values: list[int]) -> float:
    return max(values) - min(values)


def mode(values: list[int]) -> float:
    return Counter(values).most_common(1)[0][0]


STATISTICS = {"median": median, "range": spread, "mode": mode}


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 if the number in the tags is right."""
    try:
        return float(abs(float(parser.parse_answer(completion) or "") - float(answer)) < 0.001)
    except ValueError:
        return 0.0


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        name = rng.choice(["median", "range", "mode", "mode"])
        low = rng.randint(1, 60)
        width = rng.randint(6, 12) if name == "mode" else rng.randint(15, 60)
        values = [rng.randint(low, low + width) for _ in range(rng.randint(8, 13))]
        if name == "mode":
            values += rng.sample(values, 3)
            rng.shuffle(values)
        question = f"{rng.choice(COLUMNS)}\n" + "\n".join(map(str, values)) + f"\n\nWhat is the {name}?"
        rows.append({"question": question, "answer": f"{STATISTICS[name](values):g}", "info": {"statistic": name}})
    return rows


def load_environment(num_examples: int = 500, seed: int = 0) -> vf.Environment:
    """Return an environment with questions about columns of numbers.

    Args:
        num_examples: Number of questions in each dataset.
        seed: Random seed of the datasets.
    """
    parser = vf.XMLParser(["answer"], answer_field="answer")
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
    )
