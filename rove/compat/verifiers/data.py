"""v0's helpers for data: answers out of texts, prompts, well-known datasets, and rows without the package `datasets`."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rove.core.errors import ConfigError

BOXED_SYSTEM_PROMPT = "Please reason step by step, and put your final answer within \\boxed{}."
# The blanks in it are v0's: scores were measured with them.
THINK_BOXED_SYSTEM_PROMPT = (
    "Think step-by-step inside <think>...</think> tags.     Then, give your final answer inside \\boxed{}."
)


def extract_boxed_answer(text: str, strict: bool = False) -> str:
    """What stands in the last `\\boxed{…}`; without a complete one the text, or "" if `strict`."""
    opened = text.rfind("\\boxed{")
    start = opened + len("\\boxed{")
    depth = 1 if opened >= 0 else 0
    for position in range(start, len(text) if depth else start):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if not depth:
            return text[start:position]
    return "" if strict else text


def extract_first_boxed_answer(text: str) -> str:
    """What stands in the first `\\boxed{…}`, as `extract_boxed_answer` had it until 0.1.4; the text without a complete one."""
    _, _, rest = text.partition("\\boxed{")
    depth = 1
    for place, char in enumerate(rest):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return rest[:place]
    return text


def extract_hash_answer(text: str) -> str:
    """What stands between the first `####` and the next one or the end; the text without one."""
    return text.split("####")[1].strip() if "####" in text else text


class Table(Sequence[dict[str, Any]]):
    """Rows with as much of a Hugging Face `Dataset` as v0 uses, for environments whose rows are a plain list."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]):
        self.rows = [dict(row) for row in rows]

    @property
    def column_names(self) -> list[str]:
        """Names of all columns."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return [row.get(key) for row in self.rows]
        return Table(self.rows[key]) if isinstance(key, slice) else self.rows[key]

    def map(self, func: Callable[..., Mapping[str, Any]], with_indices: bool = False, **ignored: Any) -> Table:
        """Every row with what `func` returns for it."""
        return Table([{**row, **(func(row, i) if with_indices else func(row))} for i, row in enumerate(self.rows)])

    def filter(self, func: Callable[[dict[str, Any]], bool], **ignored: Any) -> Table:
        """The rows for which `func` holds."""
        return Table([row for row in self.rows if func(row)])

    def select(self, indices: Sequence[int]) -> Table:
        """The rows in these places."""
        return Table([self.rows[i] for i in indices])

    def shuffle(self, seed: int | None = None) -> Table:
        """The rows in another order."""
        return Table(random.Random(seed).sample(self.rows, len(self.rows)))

    def repeat(self, times: int) -> Table:
        """All rows, so many times."""
        return Table(self.rows * times)

    def add_column(self, name: str, values: Sequence[Any]) -> Table:
        """The rows with one more column."""
        return Table([{**row, name: value} for row, value in zip(self.rows, values, strict=True)])

    def remove_columns(self, names: Sequence[str]) -> Table:
        """The rows without some columns."""
        return Table([{name: value for name, value in row.items() if name not in names} for row in self.rows])

    def rename_column(self, old: str, new: str) -> Table:
        """The rows with a column under another name."""
        return Table([{new if name == old else name: value for name, value in row.items()} for row in self.rows])

    def to_list(self) -> list[dict[str, Any]]:
        """The rows."""
        return [dict(row) for row in self.rows]


def make_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A Hugging Face `Dataset` of rows where the package is installed, else a `Table`."""
    try:
        return importlib.import_module("datasets").Dataset.from_list(list(rows))
    except ImportError:
        return Table(rows)


def as_table(source: Any) -> Any:
    """A dataset as v0 knows it: a `Dataset` as it is, a list of dicts as a `Table`.

    Raises:
        ConfigError: it is something else.
    """
    if hasattr(source, "column_names"):
        return source
    if isinstance(source, Sequence) and all(isinstance(row, Mapping) for row in source):
        return Table(source)
    raise ConfigError(
        f"a dataset cannot be a {type(source).__name__}; expected a Hugging Face Dataset or a list of dicts"
    )


def with_prompts(dataset: Any, system_prompt: str | None, few_shot: Any, map_kwargs: Mapping[str, Any]) -> Any:
    """A dataset with a column `prompt`: made of `question`, or with the system prompt put first where there is none."""
    if "prompt" not in dataset.column_names:
        before = [{"role": "system", "content": system_prompt}] if system_prompt else []
        before += list(few_shot or [])

        def asked(row: Mapping[str, Any]) -> dict[str, Any]:
            return {"prompt": [*before, {"role": "user", "content": row["question"]}]}

        return dataset.map(asked, **map_kwargs)
    if system_prompt is None:
        return dataset

    def told(row: Mapping[str, Any]) -> dict[str, Any]:
        prompt = row["prompt"]
        assert isinstance(prompt, list), f"prompt must be a list of messages with a system_prompt, got {type(prompt)}"
        has_own = bool(prompt) and prompt[0].get("role") == "system"
        return {"prompt": prompt if has_own else [{"role": "system", "content": system_prompt}, *prompt]}

    return dataset.map(told, **map_kwargs)


def with_ids(dataset: Any) -> Any:
    """A dataset with a column `example_id` of numbers; another one of that name is called `src_id`, `env_id` is dropped."""
    if "env_id" in dataset.column_names:
        dataset = dataset.remove_columns(["env_id"])
    if "example_id" in dataset.column_names and not isinstance(dataset["example_id"][0], int):
        dataset = dataset.rename_column("example_id", "src_id")
    if "example_id" not in dataset.column_names:
        dataset = dataset.add_column("example_id", range(len(dataset)))
    return dataset


def as_info(value: Any) -> dict[str, Any]:
    """The info of a row as a dict; it may be JSON.

    Raises:
        ValueError: it is no dict.
    """
    value = json.loads(value) if isinstance(value, str) else value
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"info is {value!r}; expected a dict or its JSON")
    return dict(value)
