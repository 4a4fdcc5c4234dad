"""Math with Python: problems with an integer answer, and a sandboxed Python tool that can compute it."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from itertools import product
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Solve the problem. Use the tool `python` to run Python code. It returns what the code prints and the value of the last "
    "expression; variables persist between calls. The answer is an integer. Write it in \\boxed{}, for example \\boxed{42}."
)
INTEGER = re.compile(r"[-+]?\d+")

Problem = tuple[str, int, str]
"""Question, answer, and a program that computes the answer by another method."""


def arithmetic(rng: random.Random) -> Problem:
    """Return a problem of level 1: evaluate an expression."""
    a, b, c, d = (rng.randint(1_000, 99_999) for _ in "abcd")
    expression = f"{a} * {b} - {c} * {d}"
    return f"What is {expression}?", a * b - c * d, expression


def multiples(rng: random.Random) -> Problem:
    """Return a problem of level 2: sum the multiples in a range."""
    a, b = rng.sample(range(3, 30), 2)
    limit = rng.randint(1_000, 50_000)

    def total(step: int) -> int:
        count = (limit - 1) // step
        return step * count * (count + 1) // 2

    question = f"What is the sum of all positive whole numbers below {limit} that are divisible by {a} or by {b}?"
    answer = total(a) + total(b) - total(math.lcm(a, b))
    return question, answer, f"sum(n for n in range({limit}) if n % {a} == 0 or n % {b} == 0)"


def coprimes(rng: random.Random) -> Problem:
    """Return a problem of level 3: count coprime numbers."""
    n = rng.randint(5_000, 60_000)
    answer, remaining, factor = n, n, 2
    while remaining > 1:  # Euler's totient
        if remaining % factor == 0:
            answer -= answer // factor
            while remaining % factor == 0:
                remaining //= factor
        factor += 1
    question = f"How many of the whole numbers from 1 to {n} have no common divisor with {n} except 1?"
    return question, answer, f"import math\nsum(math.gcd(k, {n}) == 1 for k in range(1, {n} + 1))"


def circle(rng: random.Random) -> Problem:
    """Return a problem of level 4: simulate a counting-out circle."""
    people, step = rng.randint(50, 2_000), rng.randint(3, 40)
    survivor = 0
    for size in range(2, people + 1):
        survivor = (survivor + step) % size
    question = (
        f"{people} people stand in a circle, numbered from 1 to {people}. Counting starts with person 1. Every time the count "
        f"reaches {step}, that person leaves the circle, and counting starts again at 1 with the next person. Which person "
        "remains at the end?"
    )
    code = (
        f"people = list(range(1, {people} + 1))\nat = 0\nwhile len(people) > 1:\n"
        f"    at = (at + {step} - 1) % len(people)\n    del people[at]\npeople[0]"
    )
    return question, survivor + 1, code


def paths(rng: random.Random) -> Problem:
    """Return a problem of level 5: count paths that are too many to list."""
    width, height = rng.randint(6, 12), rng.randint(6, 12)
    inner = list(product(range(1, width), range(1, height)))
    closed = sorted(rng.sample(inner, rng.randint(4, 10)))
    ways = {(0, -1): 1}  # as if the path came from below the start
    for y in range(height + 1):
        for x in range(width + 1):
            ways[x, y] = ways.get((x - 1, y), 0) + ways.get((x, y - 1), 0)
            if (x, y) in closed:
                ways[x, y] = 0
    question = (
        f"In a grid of streets you walk from (0, 0) to ({width}, {height}), always one step to the right (x + 1) or up (y + 1). "
        f"These crossings are closed: {', '.join(map(str, closed))}. How many different paths are there?"
    )
    code = (
        f"from functools import cache\nclosed = {closed}\n@cache\ndef ways(x, y):\n"
        f"    if x > {width} or y > {height} or (x, y) in closed:\n        return 0\n"
        f"    return 1 if (x, y) == ({width}, {height}) else ways(x + 1, y) + ways(x, y + 1)\nways(0, 0)"
    )
    return question, ways[width, height], code


LEVELS: list[Callable[[random.Random], Problem]] = [arithmetic, multiples, coprimes, circle, paths]


def boxed_number(text: str) -> int | None:
    """Return the integer in the last `\\boxed{…}`, or None: "1,024" is an integer, "7 ways" is not."""
    boxed = vf.extract_boxed_answer(text, strict=True).replace(",", "").strip()
    return int(boxed) if INTEGER.fullmatch(boxed) and len(boxed) < 100 else None


def correct(completion: vf.Messages, answer: str, parser: vf.Parser) -> float:
    """Return 1 if the boxed number is right."""
    return float(parser.parse_answer(completion) == int(answer))


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Compute the answer with Python and report the result."""
    if state["trajectory"]:
        return f"It is \\boxed{{{messages[-1].content}}}."
    return vf.tool_call("python", code=state["info"]["program"])


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess a number that has at most as many digits as the answer."""
    return f"\\boxed{{{rng.randrange(10 ** len(state['answer']))}}}"


def _rows(count: int, seed: str, levels: range) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        level = rng.choice(levels)
        question, answer, program = LEVELS[level - 1](rng)
        rows.append({"question": question, "answer": str(answer), "info": {"level": level, "program": program}})
    return rows


def load_environment(
    num_examples: int = 1000,
    seed: int = 0,
    min_level: int = 1,
    max_level: int = 5,
    max_turns: int = 6,
    unsafe: bool = False,
) -> vf.Environment:
    """Return an environment with math problems and a tool that runs Python.

    Args:
        num_examples: Number of problems in the dataset.
        seed: Random seed of the dataset; evaluation problems are drawn separately from training problems.
        min_level, max_level: Difficulty, from 1 (one expression) to 5 (a count that requires dynamic programming).
        max_turns: Maximum model turns, including turns with tool calls.
        unsafe: Run code even if this machine cannot isolate it; see docs/sandbox.md.
    """
    if not 1 <= min_level <= max_level <= len(LEVELS):
        raise vf.ConfigError(
            f"min_level is {min_level}, max_level {max_level}; need 1 <= min_level <= max_level <= {len(LEVELS)}"
        )
    levels = range(min_level, max_level + 1)
    return vf.PythonEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", levels),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", levels),
        system_prompt=SYSTEM_PROMPT,
        parser=vf.MaybeThinkParser(boxed_number),
        rubric=vf.Rubric([correct]),
        policies={"solver": solver, "guesser": guesser},
        timeout_per_command_seconds=10.0,
        max_turns=max_turns,
        unsafe=unsafe,
    )
