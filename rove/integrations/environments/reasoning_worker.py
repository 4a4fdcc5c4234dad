"""What a worker of `ReasoningGymEnv` does: it makes tasks and scores answers. Some families evaluate answers as Python."""

from __future__ import annotations

import inspect
import json
import random
import re
import sys
from typing import Any

import reasoning_gym  # pyright: ignore[reportMissingImports]
from reasoning_gym.composite import DatasetSpec  # pyright: ignore[reportMissingImports]
from reasoning_gym.factory import DATASETS  # pyright: ignore[reportMissingImports]
from reasoning_gym.utils import SYSTEM_PROMPTS  # pyright: ignore[reportMissingImports]


def setup() -> dict[str, Any]:
    """The families there are, those whose code can run an answer, and the prompt that asks for tags."""
    running = sorted(filter(_runs_code, DATASETS))
    return {"families": sorted(DATASETS), "running": running, "system_prompt": SYSTEM_PROMPTS["default"]}


class Session:
    """Makes tasks and scores answers to them."""

    def __init__(self) -> None:
        self.datasets: dict[str, Any] = {}

    def tasks(self, family: str, config: dict[str, Any], seed: int, size: int, positions: list[int]) -> list[Any]:
        """The tasks at these positions of so many, as `packed`; a task has question, answer and metadata."""
        dataset = self._dataset(family, config, seed, size)
        made: list[Any] = []
        for position in positions:
            random.seed(f"{seed}:{position}")  # some families draw from the common generators
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed((seed + position) % (1 << 32))
            made.append(packed(dataset[position]))
        return made

    def prepare(self, family: str, config: dict[str, Any], seed: int) -> None:
        """Load what scoring answers of a family takes."""
        self._dataset(family, config, seed, 1)

    def score(self, family: str, config: dict[str, Any], seed: int, task: Any, answer: str) -> tuple[float | None, str]:
        """What the family says of an answer, or (None, why not) where its scorer raises."""
        dataset = self._dataset(family, config, seed, 1)
        try:
            return float(dataset.score_answer(answer=answer, entry=unpacked(task))), ""
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"

    def _dataset(self, family: str, config: dict[str, Any], seed: int, size: int) -> Any:
        key = json.dumps([family, config, seed, size], sort_keys=True)
        if key not in self.datasets:
            if family == "composite":
                config = {**config, "datasets": [DatasetSpec(**one) for one in config.get("datasets", [])]}
            self.datasets[key] = reasoning_gym.create_dataset(family, size=size, seed=seed, **config)
        return self.datasets[key]


MARKS = ({"(tuple)"}, {"(dict)"})


def packed(value: Any) -> Any:
    """A value as JSON can hold it and `unpacked` gives it back: tuples and keys that are no texts are marked."""
    if isinstance(value, str):
        return str(value)  # numpy's texts, too
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, list):
        return [packed(item) for item in value]
    if isinstance(value, tuple):
        return {"(tuple)": [packed(item) for item in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and value.keys() not in MARKS:
            return {str(key): packed(item) for key, item in value.items()}
        return {"(dict)": [[packed(key), packed(item)] for key, item in value.items()]}
    raise TypeError(f"a task holds a {type(value).__name__}, which cannot be kept in JSON: {value!r}")


def unpacked(value: Any) -> Any:
    """The inverse of `packed`."""
    if isinstance(value, list):
        return [unpacked(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"(tuple)"}:
        return tuple(unpacked(item) for item in value["(tuple)"])
    if value.keys() == {"(dict)"}:
        return {unpacked(key): unpacked(item) for key, item in value["(dict)"]}
    return {key: unpacked(item) for key, item in value.items()}


def _runs_code(family: str) -> bool:
    source = inspect.getsource(sys.modules[DATASETS[family][0].__module__])
    return family == "composite" or bool(re.search(r"\b(eval|exec|parse_expr|sympify)\(", source))
