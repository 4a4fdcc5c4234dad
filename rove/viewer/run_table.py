"""The table of runs: filter, order, baseline, and the matrix of models and environments."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.statistics import Estimate
from rove.statistics.compare import difference_estimate
from rove.statistics.format import limits

MEASUREMENT = re.compile(r"/evaluations/")
"""Runs with this in their names are evaluations that a training run has made."""
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


class Wanted(NamedTuple):
    """Which runs to list, and in which order."""

    text: str = ""
    """Words that a row must contain, and conditions such as `learning_rate=0.001`."""
    kind: str = ""
    tag: str = ""
    measurements: bool = True
    """List evaluations made by training runs too."""
    sort: str = ""
    """A key of `SORTS`, or the name of a value such as "metric.win"; "" keeps the order."""
    descending: bool = True


def arrange(rows: Sequence[Row], wanted: Wanted) -> list[Row]:
    """Return the wanted rows in the wanted order; rows without the value to sort by come last."""
    listed = [row for row in rows if _is_wanted(row, wanted)]
    if not wanted.sort:
        return listed
    value = SORTS.get(wanted.sort) or (lambda row: row.get("values", {}).get(wanted.sort))
    known = [row for row in listed if value(row) is not None]
    known.sort(key=lambda row: _sort_key(value(row)), reverse=wanted.descending)
    return known + [row for row in listed if value(row) is None]


def _sort_key(value: object) -> tuple[bool, float, str]:
    if isinstance(value, (int, float)) and math.isfinite(value):
        return (False, value, "")
    return (True, 0.0, str(value))


def _is_wanted(row: Row, wanted: Wanted) -> bool:
    tags = row.get("tags", [])
    if not wanted.measurements and MEASUREMENT.search(row["name"]):
        return False
    if (wanted.kind and row["kind"] != wanted.kind) or (wanted.tag and wanted.tag not in tags):
        return False
    fields = " ".join(str(row.get(name, "")) for name in ("name", "env", "model", "status"))
    words = f"{fields} {' '.join(tags)}".lower()
    return all(_fits(row, words, word) for word in wanted.text.lower().split())


def _fits(row: Row, words: str, word: str) -> bool:
    name, is_condition, value = word.partition("=")
    if not is_condition or not name:
        return word in words
    known = {str(key).lower(): one for key, one in {**row.get("values", {}), **row}.items()}
    found = [known[key] for key in (name, f"setting.{name}", f"metric.{name}") if key in known]
    return any(str(one).lower() == value for one in found)


def _mean(row: Row) -> float | None:
    mean = (row.get("reward") or {}).get("mean")
    return float(mean) if isinstance(mean, (int, float)) and math.isfinite(mean) else None


def reward_ranges(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Return the range of rewards of each environment, over all its runs."""
    ranges: dict[str, tuple[float, float]] = {}
    for row in rows:
        if "range" in row:
            low, high = row["range"]
            known = ranges.get(row["env"], (low, high))
            ranges[row["env"]] = min(known[0], low), max(known[1], high)
    return ranges


def with_difference(row: Row, base: Row) -> JsonObject:
    """Return a row with the difference of its mean reward to a baseline's and its unpaired 95% interval.

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
    scored = sorted(
        (row for row in rows if row["kind"] == "eval" and _mean(row) is not None), key=lambda row: row["changed"]
    )
    models, envs = (sorted({row[key] for row in scored}) for key in ("model", "env"))
    found: dict[tuple[str, str], list[Row]] = {}
    for row in scored:
        found.setdefault((row["model"], row["env"]), []).append(row)

    def cell(model: str, env: str) -> JsonObject | None:
        runs = found.get((model, env))
        return {"name": runs[-1]["name"], "reward": runs[-1]["reward"], "runs": len(runs)} if runs else None

    return {"models": models, "envs": envs, "cells": [[cell(model, env) for env in envs] for model in models]}
