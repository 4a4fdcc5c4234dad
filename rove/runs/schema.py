"""Decode and check the JSON and TOML files of a run folder, which may be damaged or untrusted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypedDict, TypeVar

import msgspec

from rove.core.errors import RunError
from rove.core.plain import UNREADABLE, Arguments, JsonObject, JsonValue, is_list, is_mapping

T = TypeVar("T")

MAX_DEPTH = 50
"""Maximum nesting depth of tables and lists."""
MAX_INTEGER = 1 << 63
"""Integers must be smaller than this, as in TOML and SQLite."""

Scalar = str | int | float | bool | None
Numbers = dict[str, float | None]


class Estimate(TypedDict, total=False):
    """A mean with its interval, and the weight of a reward function."""

    mean: float | None
    low: float | None
    high: float | None
    caveat: str | None
    weight: float | None


class Cost(TypedDict, total=False):
    """Cost of an evaluation."""

    total: float | None
    per_rollout: float | None


class Best(TypedDict):
    """The best measurement of a training run."""

    metric: str
    value: float
    step: int


Summary = TypedDict(
    "Summary",
    {
        "rollouts": int,
        "scored": int,
        "failed": int,
        "truncated": int,
        "examples": int | None,
        "reward": Estimate | None,
        "functions": dict[str, Estimate] | None,
        "pass@k": dict[str, Estimate] | None,
        "pass^k": dict[str, Estimate] | None,
        "stops": dict[str, int] | None,
        "errors": dict[str, int] | None,
        "prompt_tokens": int | None,
        "completion_tokens": int | None,
        "tokens_per_rollout": Numbers | None,
        "latency": dict[str, Numbers] | None,
        "cost": Cost | None,
        "too_few": str,
        "steps": int,
        "last": dict[str, Scalar],
        "best": Best,
        "stopped": str,
    },
    total=False,
)
"""Keys of summary.json that rove reads; evaluations and training runs each write some of these keys."""


class Settings(TypedDict, total=False):
    """Settings in config.toml that rove reads, except those that it only shows as text."""

    env: str
    env_args: Arguments
    env_dir: str
    num_examples: int
    rollouts_per_example: int
    pass_threshold: float
    price: dict[str, float]
    seed: int
    steps: int


class Config(TypedDict):
    """The content of config.toml."""

    kind: str
    identity: JsonObject
    config: Settings


class Stopped(TypedDict):
    """The content of stopped.json."""

    why: str


def decoded(
    file: Path, content: bytes, expected: object, decode: Callable[[bytes], JsonValue] = msgspec.json.decode
) -> JsonObject:
    """Decode the content of a file and check its types; values of unknown keys are returned unchecked.

    Args:
        decode: Decoder of the file format. Default: JSON.
    """
    try:
        value = decode(content)
        # Only checked, not converted: keys of other versions of rove stay.
        msgspec.convert(value, expected)
        check_plain(value)
    except (ValueError, *UNREADABLE) as error:
        raise RunError(f"{file} is damaged, or not a file that rove wrote: {error}") from error
    return value


def decoded_row(line: bytes) -> JsonObject:
    """Decode a line of metrics.jsonl or alerts.jsonl: numbers and texts by name, `step` an integer if there is one."""
    try:
        row = msgspec.json.decode(line, type=dict[str, Scalar])
        step = row.get("step", 0)
        if type(step) is not int:  # not isinstance: True is an int, too
            raise ValueError(f"`step` is {step!r}; expected an integer")
        check_plain(row)
    except (ValueError, *UNREADABLE) as error:
        raise RunError(f"not a row of numbers and texts: {error}; the line starts {line[:80]!r}") from error
    return row


def check_plain(value: object, depth: int = 0) -> None:
    """Refuse values that cannot be shown or stored."""
    if depth > MAX_DEPTH:
        raise ValueError(f"tables or lists are nested deeper than {MAX_DEPTH}")
    if is_mapping(value):
        value = list(value.values())
    if is_list(value):
        for item in value:
            check_plain(item, depth + 1)
    elif isinstance(value, int) and abs(value) >= MAX_INTEGER:
        raise ValueError(f"an integer has {len(str(value))} digits; expected less than 2^63")
