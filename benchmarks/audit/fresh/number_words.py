"""Number words: write a range of numbers in words, one per line."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Write the numbers in English words, one number per line and nothing else, for example\n"
    "four hundred nineteen\nfour hundred twenty\nfour hundred twenty-one"
)
SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(number: int) -> str:
    """Return a number below 10,000 in words."""
    if number >= 1000:
        rest = number % 1000
        return f"{in_words(number // 1000)} thousand{' ' + in_words(rest) if rest else ''}"
    if number >= 100:
        rest = number % 100
        return f"{SMALL[number // 100]} hundred{' ' + in_words(rest) if rest else ''}"
    if number >= 20:
        rest = number % 10
        return f"{TENS[number // 10 - 2]}{'-' + SMALL[rest] if rest else ''}"
    return SMALL[number]


def lines_of(text: str) -> list[str]:
    """Return the lines that are not empty, in lower case, without hyphens, commas, full stops and "and"."""
    lines = (re.sub(r"[-,.\s]+", " ", line.lower()).strip() for line in text.splitlines())
    return [re.sub(r"\band ", "", line) for line in lines if line]


def correct(completion: vf.Messages, answer: str, parser: vf.Parser) -> float:
    """Return 1 if all lines are right and no line is missing or too much."""
    return float(lines_of(parser.parse_answer(completion) or "") == lines_of(answer))


def lines_right(completion: vf.Messages, answer: str, parser: vf.Parser) -> float:
    """Return the share of numbers that are somewhere in the response."""
    wanted = lines_of(answer)
    given = set(lines_of(parser.parse_answer(completion) or ""))
    return sum(line in given for line in wanted) / len(wanted)


def clerk(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Write all numbers."""
    return state["answer"]


def tired(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Skip a number in half of all ranges."""
    lines = state["answer"].split("\n")
    if rng.random() < 0.5:
        del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def _rows(count: int, seed: str, starts: list[int]) -> list[dict[str, Any]]:
    rows = []
    for index, start in enumerate(random.Random(seed).sample(starts, min(count, len(starts)))):
        rng = random.Random(f"{seed}:{index}")
        step, length = rng.choice((1, 1, 2, 3, 5)), rng.randint(40, 70)
        numbers = range(start, start + step * length, step)
        by = "" if step == 1 else f", counting by {step}"
        question = f"Write the numbers from {numbers[0]} to {numbers[-1]}{by}."
        answer = "\n".join(map(in_words, numbers))
        rows.append({"question": question, "answer": answer, "info": {"step": step, "length": length}})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with ranges of 40 to 70 numbers; every fourth start is for evaluation only.

    Args:
        num_examples: Number of ranges in each dataset.
        seed: Random seed of the ranges.
    """
    starts = range(200, 9500, 7)
    trained = [start for index, start in enumerate(starts) if index % 4]
    rubric = vf.Rubric([correct], parser=vf.MaybeThinkParser())
    rubric.add_metric(lines_right)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", trained),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", list(starts[::4])),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"clerk": clerk, "tired": tired},
    )
