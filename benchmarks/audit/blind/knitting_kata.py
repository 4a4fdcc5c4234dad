"""Knitting kata: the model writes small Python functions about knitting charts and can try them in a sandbox."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Write the Python function that is asked for. You may try code with the tool. Give the finished function in one "
    "```python code block at the end of your last reply."
)
BLOCK = re.compile(r"```(?:python|py)?\s*\n(.*?)```", re.DOTALL)

# Name of the function, task, reference solution, and ranges of the arguments that tests use.
PATTERNS = [
    (
        "stitches",
        "Return the stitches on the needle after `rows` rows if {a} were cast on and {b} are added at the end of every {c} rows.",
        "def stitches(rows):\n    return {a} + {b} * (rows // {c})",
        (0, 90),
    ),
    (
        "colour",
        "Stripes of {a} red, {b} white and {c} blue rows repeat in this order. Return the colour of row `row`; the first row is 1.",
        "def colour(row):\n    place = (row - 1) % ({a} + {b} + {c})\n    return 'red' if place < {a} else 'white' if place < {a} + {b} else 'blue'",
        (1, 120),
    ),
    (
        "is_cable_row",
        "A cable is crossed in row {a} and then again every {c} rows. Return whether row `row` has a crossing.",
        "def is_cable_row(row):\n    return row >= {a} and (row - {a}) % {c} == 0",
        (1, 100),
    ),
    (
        "balls",
        "A ball has {a}0 metres and a row takes {c} metres. Return how many balls must be bought for `rows` rows.",
        "def balls(rows):\n    return -(-rows * {c} // {a}0)",
        (1, 200),
    ),
    (
        "rib",
        "Return a row of `count` stitches as text: an edge of {a} times 'g', then {b} times 'k' and {c} times 'p' in turns, cut at the end.",
        "def rib(count):\n    return ('g' * {a} + ('k' * {b} + 'p' * {c}) * count)[:count]",
        (5, 90),
    ),
]


def last_block(text: str) -> str:
    """Return the code of the last code block, or an empty text."""
    blocks = BLOCK.findall(text)
    return blocks[-1] if blocks else ""


def passes(state: vf.State) -> float:
    """Return 1 if the tests succeed."""
    return float(state.get("passed", False))


def submitted(state: vf.State) -> float:
    """Return 1 if the last reply has a code block."""
    return float(state.get("submitted", False))


class KnittingEnv(vf.PythonEnv):
    """An environment that runs the tests on the last code block in the rollout's sandbox."""

    async def post_rollout(self, state: vf.State) -> None:
        code = last_block(vf.Parser().parse_answer(state["completion"]) or "")
        state["submitted"] = bool(code.strip())
        if state["submitted"]:
            session = await self.sandbox(state)
            tests = "\n".join(state["info"]["tests"])
            await session.put("check.py", f"{code}\n\n{tests}\n".encode("utf-8", "replace"))
            result = await session.bash("python3 -I check.py")
            state["passed"] = result.ok
        await super().post_rollout(state)


def knitter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Submit the reference solution."""
    return f"Here it is.\n```python\n{state['info']['solution']}\n```"


def beginner(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Submit the reference solution, in most cases with a constant that is off by one."""
    code = state["info"]["solution"]
    if rng.random() < 0.7:
        code = re.sub(r"\d+", lambda found: str(int(found[0]) + 1), code)
    return f"```python\n{code}\n```"


def _tests(name: str, function: Callable[[int], Any], arguments: range, rng: random.Random) -> list[str]:
    results = []
    while len(results) < 12 or max(Counter(results).values()) > 8:
        values = sorted(rng.sample(arguments, 12))
        results = [repr(function(value)) for value in values]
    return [f"assert {name}({value}) == {result}" for value, result in zip(values, results, strict=True)]


def _rows(count: int, seed: str, casts: range) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows, seen = [], set()
    while len(rows) < count:
        name, task, solution, (low, high) = PATTERNS[len(rows) % len(PATTERNS)]
        numbers = {"a": rng.choice(casts), "b": rng.randrange(2, 9), "c": rng.randrange(3, 10)}
        task, solution = task.format(**numbers), solution.format(**numbers)
        if task in seen:
            continue
        seen.add(task)
        namespace: dict[str, Any] = {}
        exec(solution, namespace)
        tests = _tests(name, namespace[name], range(low, high + 1), rng)
        question = f"Write `{name}`. {task}"
        rows.append({"question": question, "answer": "", "info": {"tests": tests, "solution": solution}})
    return rows


def load_environment(
    num_examples: int = 100, seed: int = 0, max_turns: int = 5, unsafe: bool = False
) -> vf.Environment:
    """Return an environment of small programming tasks.

    Args:
        num_examples: Number of tasks in each dataset; training and evaluation use different constants.
        seed: Random seed of the tasks.
        max_turns: Maximum model turns, including turns with tool calls.
        unsafe: Run code even if this machine cannot isolate it.
    """
    rubric = vf.Rubric([passes])
    rubric.add_metric(submitted)
    return KnittingEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", range(2, 40, 2)),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", range(3, 40, 2)),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"knitter": knitter, "beginner": beginner},
        timeout_per_command_seconds=10.0,
        max_turns=max_turns,
        unsafe=unsafe,
    )
