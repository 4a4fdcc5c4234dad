"""The table of runs: filter, order, baseline, and the matrix of models and environments."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.statistics import Estimate
from rove.statistics.compare import difference_estimate
from rove.statistics.format import limits
from rove.viewer.html import finite

MEASUREMENT = re.compile(r"/evaluations/")
"""Pattern in the names of runs that are evaluations made by a training run."""


def inside_training(names: Iterable[str], train_names: Iterable[str]) -> set[str]:
    """Return the names of runs that another run has made: measurements of training runs, and stages of `rove train` runs."""
    prefixes = tuple(f"{name}/" for name in train_names)
    return {name for name in names if MEASUREMENT.search(name) or name.startswith(prefixes)}


SORTS: Mapping[str, Callable[[JsonMapping], JsonValue]] = {
    "environment": lambda row: str(row.get("env", "")),
    "reward": lambda row: _mean(row),
    "name": lambda row: row["name"],
    "kind": lambda row: row["kind"],
    "status": lambda row: row["status"],
    "model": lambda row: str(row.get("model", "")),
    "changed": lambda row: row["changed"],
}

Row = JsonMapping


class RunSelection(NamedTuple):
    """The runs to list, and their order."""

    text: str = ""
    """Words that a row must contain, and conditions such as `learning_rate=0.001`."""
    kind: str = ""
    tag: str = ""
    without: Collection[str] = ()
    """Names of runs that are not listed."""
    sort: str = ""
    """A key of `SORTS`, or the name of a value such as "metric.win"; "" keeps the rows' order."""
    descending: bool = True


def arrange(rows: Sequence[Row], selection: RunSelection) -> list[Row]:
    """Return the selected rows in order; rows without the value to sort by come last."""
    listed = [row for row in rows if _is_selected(row, selection)]
    if not selection.sort:
        return listed
    value = SORTS.get(selection.sort) or (lambda row: row.get("values", {}).get(selection.sort))
    with_value = [row for row in listed if value(row) is not None]
    with_value.sort(key=lambda row: _sort_key(value(row)), reverse=selection.descending)
    return with_value + [row for row in listed if value(row) is None]


def _sort_key(value: object) -> tuple[bool, float, str]:
    number = finite(value)
    return (True, 0.0, str(value)) if number is None else (False, number, "")


def _is_selected(row: Row, selection: RunSelection) -> bool:
    tags = row.get("tags", [])
    if row["name"] in selection.without:
        return False
    if (selection.kind and row["kind"] != selection.kind) or (selection.tag and selection.tag not in tags):
        return False
    fields = " ".join(str(row.get(name, "")) for name in ("name", "env", "model", "status"))
    words = f"{fields} {' '.join(tags)}".lower()
    return all(_fits(row, words, word) for word in selection.text.lower().split())


def _fits(row: Row, words: str, word: str) -> bool:
    name, is_condition, value = word.partition("=")
    if not is_condition or not name:
        return word in words
    values = {str(key).lower(): item for key, item in {**row.get("values", {}), **row}.items()}
    candidates = [values[key] for key in (name, f"setting.{name}", f"metric.{name}") if key in values]
    return any(str(candidate).lower() == value for candidate in candidates)


def _mean(row: Row) -> float | None:
    return finite((row.get("reward") or {}).get("mean"))


def reward_ranges(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Return the range of rewards of each environment, over all its runs."""
    ranges: dict[str, tuple[float, float]] = {}
    for row in rows:
        if "range" in row:
            low, high = row["range"]
            widest = ranges.get(row["env"], (low, high))
            ranges[row["env"]] = min(widest[0], low), max(widest[1], high)
    return ranges


def with_difference(row: Row, base: Row) -> JsonObject:
    """Return a row with the difference between its mean reward and the baseline's, and the unpaired 95% interval of the
    difference.

    `difference` is None for another environment, and for a run without a reward.
    """
    comparable = row.get("env") == base.get("env") and row.get("measure") == base.get("measure") == "reward"
    if not comparable or _mean(row) is None or _mean(base) is None:
        return {**row, "difference": None}
    return {**row, "difference": msgspec.structs.asdict(difference_estimate(_estimate(base), _estimate(row)))}


def _estimate(row: Row) -> Estimate:
    low, high = limits(row["reward"]) or (math.nan, math.nan)
    return Estimate(_mean(row) or 0.0, low, high, row["reward"].get("caveat"))


def matrix(rows: Sequence[Row]) -> JsonObject:
    """Return `models`, `envs`, and `cells`: the latest evaluation of a model in an environment, and the number of its `runs`."""
    evaluations = [row for row in rows if row["kind"] == "eval"]
    scored = [row for row in evaluations if _mean(row) is not None]
    scored.sort(key=lambda row: row["changed"])
    models, envs = (sorted({row[key] for row in scored}) for key in ("model", "env"))
    runs_by_cell: dict[tuple[str, str], list[Row]] = {}
    for row in scored:
        runs_by_cell.setdefault((row["model"], row["env"]), []).append(row)

    def cell(model: str, env: str) -> JsonObject | None:
        runs = runs_by_cell.get((model, env))
        if not runs:
            return None
        return {"name": runs[-1]["name"], "reward": runs[-1]["reward"], "runs": len(runs)}

    return {"models": models, "envs": envs, "cells": [[cell(model, env) for env in envs] for model in models]}
