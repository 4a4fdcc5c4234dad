"""Kata functions: write a small Python function; hidden tests decide."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Write a Python function named `solve` that does what the task asks. Use only the standard library. "
    "Reply with one code block:\n```python\ndef solve(...):\n    ...\n```"
)
BLOCK = re.compile(r"```(?:python|py)?\s*\n(.*?)```", re.DOTALL)
TIMEOUT_SECONDS = 4


def extract_code(text: str) -> str:
    """Return the last code block."""
    blocks = BLOCK.findall(text)
    return blocks[-1].strip() if blocks else ""


def run_tests(code: str, tests: list[str]) -> bool:
    """Run a solution together with its tests in a fresh interpreter."""
    program = "\n".join([code, "", *tests, ""])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "solution.py"
        path.write_text(program)
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", str(path)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


def _numbers(rng: random.Random) -> list[int]:
    return [rng.randint(-40, 99) for _ in range(rng.randint(4, 9))]


WORDS = "amber bolt cedar dune ember fjord grove harbor inlet jetty knoll lagoon meadow nook orchard prairie quay ridge".split()


def _text(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 8)))


Task = tuple[str, Callable[[Any], Any], Callable[[random.Random], Any]]


def sum_divisible(k: int) -> Task:
    return (
        f"Return the sum of all numbers in a list that are divisible by {k}.",
        lambda xs: sum(x for x in xs if x % k == 0),
        _numbers,
    )


def every_kth(k: int) -> Task:
    return f"Return a list of every {k}th element of a list, starting with the first.", lambda xs: xs[::k], _numbers


def long_words(k: int) -> Task:
    return (
        f"Return how many words of a text have more than {k} letters.",
        lambda text: sum(len(w) > k for w in text.split()),
        _text,
    )


def rotate(k: int) -> Task:
    return (
        f"Rotate a list to the left by {k} places and return it.",
        lambda xs: xs[k % len(xs) :] + xs[: k % len(xs)],
        _numbers,
    )


def window_max(k: int) -> Task:
    return (
        f"Return the largest sum of {k} neighboring numbers in a list, or None if the list is shorter.",
        lambda xs: max((sum(xs[i : i + k]) for i in range(len(xs) - k + 1)), default=None),
        _numbers,
    )


def shift_letters(k: int) -> Task:
    def shift(text: str) -> str:
        return "".join(chr((ord(c) - 97 + k) % 26 + 97) if c.isalpha() else c for c in text)

    return (
        f"Shift every lowercase letter of a text by {k} places in the alphabet (z is followed by a); keep other characters.",
        shift,
        _text,
    )


def above(k: int) -> Task:
    return (
        f"Return the sorted list of the different numbers in a list that are greater than {k}.",
        lambda xs: sorted({x for x in xs if x > k}),
        _numbers,
    )


def chunks(k: int) -> Task:
    return (
        f"Split a list into lists of length {k}; the last one may be shorter.",
        lambda xs: [xs[i : i + k] for i in range(0, len(xs), k)],
        _numbers,
    )


RANGES: dict[Callable[[int], Task], range] = {
    sum_divisible: range(2, 22),
    every_kth: range(2, 6),
    long_words: range(3, 7),
    rotate: range(1, 30),
    window_max: range(2, 6),
    shift_letters: range(1, 26),
    above: range(-30, 40),
    chunks: range(2, 7),
}


def _rows(seed: int, num_tests: int) -> list[dict[str, Any]]:
    rows = []
    for make, values in RANGES.items():
        for k in values:
            rng = random.Random(f"{seed}:{make.__name__}:{k}")
            task, solution, sample = make(k)
            inputs = [sample(rng) for _ in range(num_tests + 1)]
            shown, *hidden = inputs
            tests = [f"assert solve({value!r}) == {solution(value)!r}" for value in hidden]
            question = f"{task}\nExample: solve({shown!r}) returns {solution(shown)!r}"
            rows.append({"question": question, "info": {"tests": tests, "task": make.__name__}})
    random.Random(f"{seed}:order").shuffle(rows)
    return rows


def passed(completion: vf.Messages, info: dict[str, Any], parser: vf.Parser) -> float:
    """1 if all tests pass."""
    code = parser.parse_answer(completion)
    return float(bool(code) and run_tests(code, info["tests"]))


def has_function(completion: vf.Messages, parser: vf.Parser) -> float:
    return float("def solve(" in (parser.parse_answer(completion) or ""))


def load_environment(num_eval_examples: int = 60, num_tests: int = 6, seed: int = 0) -> vf.Environment:
    """Return an environment with small programming tasks.

    Args:
        num_eval_examples: Tasks for evaluation; the others are for training.
        num_tests: Hidden tests per task.
        seed: Random seed of the tests and of the split.
    """
    rows = _rows(seed, num_tests)
    parser = vf.MaybeThinkParser(extract_code)
    rubric = vf.Rubric([passed], parser=parser)
    rubric.add_metric(has_function)
    return vf.SingleTurnEnv(
        dataset=rows[num_eval_examples:],
        eval_dataset=rows[:num_eval_examples],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
