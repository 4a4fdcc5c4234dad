"""Print facts about the rows of all families of reasoning-gym as JSON; see `survey.py`. Run in a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from typing import Any

import reasoning_gym
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import DATASETS

ROWS = 60


def family_facts(family: str) -> dict[str, Any]:
    """Return how many different answers a family has, the share of rows that two seeds share, and what JSON changes."""
    config = {"datasets": [DatasetSpec("chain_sum", 1, {}), DatasetSpec("gcd", 1, {})]} if family == "composite" else {}
    first, second = (reasoning_gym.create_dataset(family, size=ROWS, seed=seed, **config) for seed in (1, 2))
    rows, other_rows = list(first), list(second)
    keys, other_keys = ([f"{row['question']}|{row['answer']}" for row in seed_rows] for seed_rows in (rows, other_rows))
    return {
        "answers": len({str(row["answer"]) for row in rows}),
        "shared": sum(key in set(other_keys) for key in keys) / ROWS,
        "distinct": len(set(keys)),
        "json": _json_change(first, rows),
    }


def _json_change(dataset: Any, rows: list[dict[str, Any]]) -> str:
    """Return how JSON changes rows or the scores of their answers; "" if it does not."""
    for row in rows[:20]:
        if not isinstance(row["answer"], str):
            continue
        score = dataset.score_answer(answer=row["answer"], entry=row)
        try:
            reread_score = dataset.score_answer(answer=row["answer"], entry=json.loads(json.dumps(row)))
        except Exception as error:  # of JSON, or of a scorer that needs the original types
            return f"{type(error).__name__}: {error}"[:120]
        if score != reread_score:
            return f"the row's own answer earns {reread_score:g} instead of {score:g}"
    return ""


def main() -> None:
    """Print the facts of all families."""
    out = os.dup(1)
    os.dup2(2, 1)  # what the library prints
    families: dict[str, Any] = {}
    for family in sorted(DATASETS):
        try:
            families[family] = family_facts(family)
        except Exception as error:  # a family that needs a download, for example
            families[family] = {"error": f"{type(error).__name__}: {error}"[:200]}
        print(family, round(time.process_time()), file=sys.stderr)
    version = importlib.metadata.version("reasoning-gym")
    with os.fdopen(out, "w") as file:
        json.dump({"version": version, "cpu_seconds": round(time.process_time(), 1), "families": families}, file)


if __name__ == "__main__":
    main()
