"""Race points: write a small Python function that scores a sports event."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Write the function in Python. Answer with one code block:\n```python\ndef score(place, laps_led):\n    ...\n```"
)
BLOCK = re.compile(r"```(?:python)?\s*\n(.*?)```", re.DOTALL)
LIMITS = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\nresource.setrlimit(resource.RLIMIT_CPU, (2, 2))\n"
EVENTS = ("cyclo-cross cup", "sailing regatta", "karting league", "fell-running series", "rowing trophy", "ski tour")


def points(rules: dict[str, Any], place: int, laps_led: int) -> int:
    table = rules["table"]
    total = table[place - 1] if place <= len(table) else rules["rest"]
    return total + rules["bonus"] * (laps_led >= rules["laps"])


def run_tests(code: str, tests: str) -> bool:
    """Return whether the code passes the tests, in a process of its own."""
    command = [sys.executable, "-I", "-c", f"{LIMITS}{code}\n{tests}"]
    try:
        return subprocess.run(command, capture_output=True, timeout=5, stdin=subprocess.DEVNULL, env={}).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def passed(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return 1 if the function passes all tests."""
    blocks = BLOCK.findall(completion[-1]["content"] or "")
    return float(bool(blocks) and run_tests(blocks[-1], info["tests"]))


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        table = sorted(rng.sample(range(4, 60), rng.randint(3, 7)), reverse=True)
        rules = {"table": table, "rest": rng.randint(0, 3), "bonus": rng.randint(1, 9), "laps": rng.randint(2, 12)}
        cases = [(1, 0), (2, rules["laps"]), (len(table), rules["laps"] - 1), (len(table) + 1, 20), (30, 0), (1, 25)]
        tests = "\n".join(f"assert score({place}, {laps}) == {points(rules, place, laps)}" for place, laps in cases)
        question = (
            f"The {rng.choice(EVENTS)} gives {', '.join(map(str, table))} points for places 1 to {len(table)} and "
            f"{rules['rest']} for every place after that. Leading {rules['laps']} laps or more adds {rules['bonus']} points. "
            "Write score(place, laps_led), which returns the points as an int."
        )
        rows.append({"question": question, "info": {"rules": rules, "tests": tests}})
    return rows


def load_environment(num_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment in which the model writes scoring functions.

    Args:
        num_examples: Number of functions in each dataset.
        seed: Random seed of the rules; evaluation rules are drawn separately.
    """
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([passed]),
    )
