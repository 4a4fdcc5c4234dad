"""Small functions: write a Python function from its description. Hidden tests check it."""

import asyncio
import os
import random
import re
import sys
import tempfile

import rove as vf

SYSTEM_PROMPT = (
    "Write the Python function that is described. Put the code into one block:\n"
    "```python\ndef solve(...):\n    ...\n```\nOnly the standard library is available."
)
TIME_LIMIT = 5.0
WORDS = (
    "amber birch cloud delta ember frost grove heath iris jade kelp lotus maple north onyx pearl quill ridge".split()
)


def numbers(rng):
    return [rng.randint(-30, 60) for _ in range(rng.randint(4, 10))]


def words(rng):
    return [rng.choice(WORDS)[: rng.randint(2, 5)] for _ in range(rng.randint(3, 8))]


# description, reference, arguments of a test
TASKS = [
    (
        "the sum of the numbers in the list xs that are divisible by {a} and larger than {b}",
        lambda xs, a, b: sum(x for x in xs if x % a == 0 and x > b),
        numbers,
    ),
    (
        "how many numbers in the list xs lie between {b} and {b} + {a} * 4, both included",
        lambda xs, a, b: sum(b <= x <= b + a * 4 for x in xs),
        numbers,
    ),
    (
        "the first {a} numbers of the list xs after it was rotated to the left by {b} places",
        lambda xs, a, b: (xs[b % len(xs) :] + xs[: b % len(xs)])[:a],
        numbers,
    ),
    (
        "a list with every {a}th number of the list xs, starting with the first, each increased by {b}",
        lambda xs, a, b: [x + b for x in xs[::a]],
        numbers,
    ),
    (
        "the largest difference between two numbers in the list xs, multiplied by {a} and reduced by {b}",
        lambda xs, a, b: (max(xs) - min(xs)) * a - b,
        numbers,
    ),
    (
        "the words in the list xs that have more than {a} letters, sorted alphabetically and joined by {b} hyphens",
        lambda xs, a, b: ("-" * b).join(sorted(x for x in xs if len(x) > a)),
        words,
    ),
    (
        "a list of the words in the list xs, each repeated {b} times and then cut to {a} + 4 letters",
        lambda xs, a, b: [(x * b)[: a + 4] for x in xs],
        words,
    ),
    (
        "the total number of letters of the words in the list xs whose length is not {a}, plus {b}",
        lambda xs, a, b: sum(len(x) for x in xs if len(x) != a) + b,
        words,
    ),
]


def code_of(completion):
    """Return the last block of code in the reply."""
    blocks = re.findall(r"```(?:python)?\n(.*?)```", completion[-1]["content"] or "", re.DOTALL)
    return blocks[-1] if blocks else ""


async def run_python(program):
    """Run a program in a process of its own; return its exit code, or None if it takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.py")
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(program)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            path,
            cwd=folder,
            env={},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            return await asyncio.wait_for(process.wait(), TIME_LIMIT)
        except TimeoutError:
            process.kill()
            await process.wait()
            return None


async def passes_tests(completion, info):
    """1 if the function passes all tests."""
    code = code_of(completion)
    if not code.strip():
        return 0.0
    tests = "\n".join(f"assert solve({xs!r}) == {expected!r}" for xs, expected in info["tests"])
    return float(await run_python(f"{code}\n\n{tests}\n") == 0)


def has_code(completion):
    return float(bool(code_of(completion).strip()))


def make_row(index, seed, split):
    rng = random.Random(f"{seed}-{split}-{index}")
    description, reference, arguments = TASKS[index % len(TASKS)]
    # even thresholds for training, odd ones for evaluation
    a, b = rng.randint(2, 6 if arguments is numbers else 4), 2 * rng.randint(0, 9) + (2 if split == "train" else 1)
    tests = []
    while len({repr(expected) for _, expected in tests}) < 3:
        inputs = [arguments(rng) for _ in range(8)]
        tests = [[xs, reference(list(xs), a, b)] for xs in inputs]
    question = f"Write a function solve(xs) that returns {description.format(a=a, b=b)}."
    return {"question": question, "info": {"tests": tests}}


def rows(count, seed, split):
    found, index = {}, 0
    while len(found) < count:
        row = make_row(index, seed, split)
        found.setdefault(row["question"], row)
        index += 1
    return list(found.values())


def load_environment(num_examples: int = 160, seed: int = 0):
    """Return an environment in which the model writes small Python functions.

    Args:
        num_examples: Number of tasks for training, and for evaluation.
        seed: Random seed of the tasks and their tests.
    """
    rubric = vf.Rubric([passes_tests])
    rubric.add_metric(has_code)
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, seed, "train"),
        eval_dataset=lambda: rows(num_examples, seed, "eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
    )
