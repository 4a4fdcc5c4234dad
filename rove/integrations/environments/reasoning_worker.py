"""Worker of `ReasoningGymEnv`: creates tasks and scores answers; some families evaluate answers as Python."""

from __future__ import annotations

import inspect
import json
import random
import re
import sys
from fractions import Fraction
from typing import Any

import reasoning_gym  # pyright: ignore[reportMissingImports]
from reasoning_gym.composite import DatasetSpec  # pyright: ignore[reportMissingImports]
from reasoning_gym.factory import DATASETS  # pyright: ignore[reportMissingImports]
from reasoning_gym.utils import SYSTEM_PROMPTS  # pyright: ignore[reportMissingImports]


def setup() -> dict[str, Any]:
    """Return all families, the families that may run an answer as code, and the prompt that requests tags."""
    running = sorted(filter(_runs_code, DATASETS))
    return {"families": sorted(DATASETS), "running": running, "system_prompt": SYSTEM_PROMPTS["default"]}


class Session:
    """Creates tasks and scores answers."""

    def __init__(self) -> None:
        self.datasets: dict[str, Any] = {}

    def tasks(self, family: str, config: dict[str, Any], seed: int, size: int, positions: list[int]) -> list[Any]:
        """Return the tasks at these positions, encoded by `encode`; a task has question, answer and metadata."""
        dataset = self._dataset(family, config, seed, size)
        tasks: list[Any] = []
        for position in positions:
            # Some families use the global generators, so that their tasks depended on what the process had done before.
            random.seed(f"{seed}:{position}")
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed((seed + position) % (1 << 32))
            tasks.append(encode(dataset[position]))
        return tasks

    def prepare(self, family: str, config: dict[str, Any], seed: int) -> None:
        """Load what a family needs for scoring."""
        self._dataset(family, config, seed, 1)

    def score(
        self, family: str, config: dict[str, Any], seed: int, task: object, answer: str
    ) -> tuple[float | None, str]:
        """Return the family's score of an answer, or (None, reason) if its scorer raises."""
        dataset = self._dataset(family, config, seed, 1)
        # Scorers raise exceptions for answers that they cannot read; see docs/decisions/workers.md.
        try:
            return float(dataset.score_answer(answer=answer, entry=decode(task))), ""
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"

    def _dataset(self, family: str, config: dict[str, Any], seed: int, size: int) -> Any:
        key = json.dumps([family, config, seed, size], sort_keys=True)
        if key not in self.datasets:
            if family == "composite":
                config = {**config, "datasets": [DatasetSpec(**spec) for spec in config.get("datasets", [])]}
            self.datasets[key] = reasoning_gym.create_dataset(family, size=size, seed=seed, **config)
        return self.datasets[key]


# Without their tuples and numeric keys, arc_agi and rearc mark their own answers as wrong (docs/decisions/workers.md).
MARKERS = ({"(tuple)"}, {"(dict)"}, {"(fraction)"})


def encode(value: object) -> Any:
    """Encode a value as JSON that `decode` can restore: tuples, fractions and keys that are not strings are marked."""
    if isinstance(value, str):
        return str(value)  # also converts numpy's strings
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Fraction):
        return {"(fraction)": str(value)}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple):
        return {"(tuple)": [encode(item) for item in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and value.keys() not in MARKERS:
            return {str(key): encode(item) for key, item in value.items()}
        return {"(dict)": [[encode(key), encode(item)] for key, item in value.items()]}
    raise TypeError(f"a task contains a {type(value).__name__}, which JSON cannot represent: {value!r}")


def decode(value: object) -> Any:
    """Restore a value encoded by `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"(tuple)"}:
        return tuple(decode(item) for item in value["(tuple)"])
    if value.keys() == {"(fraction)"}:
        return Fraction(value["(fraction)"])
    if value.keys() == {"(dict)"}:
        return {decode(key): decode(item) for key, item in value["(dict)"]}
    return {key: decode(item) for key, item in value.items()}


def _runs_code(family: str) -> bool:
    if family == "composite":  # it may contain any family
        return True
    source = inspect.getsource(sys.modules[DATASETS[family][0].__module__])
    # sympy's functions evaluate their text as Python, too.
    return bool(re.search(r"\b(eval|exec|parse_expr|sympify)\(", source))
