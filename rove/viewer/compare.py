"""Compare two runs by their indexes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rove.core.errors import RunError
from rove.core.records import Outcome, Scores
from rove.runs.serialization import decode_outcome
from rove.statistics import compare
from rove.viewer.index import Index
from rove.viewer.queries import CURRENT_ROLLOUTS, TABLE_SCAN
from rove.viewer.rollouts import read_line


def compare_runs(a: Index, b: Index, value: str, names: tuple[str, str]) -> dict[str, Any]:
    """Compare the scored rollouts of two runs (`rove.statistics.compare`).

    Each example that moved gets a line of each run: its rollout with the lowest reward.

    Raises:
        ConfigError: A run has no scored rollout, or not the value.
    """
    comparison = compare(scored_outcomes(a), scored_outcomes(b), value, names=names)
    result = msgspec.to_builtins(comparison)
    for mover in (*result["up"], *result["down"]):
        mover["lines"] = [_lowest(index, mover["example_key"]) for index in (a, b)]
    return result


def _lowest(index: Index, key: str) -> int:
    sql = (
        "SELECT line FROM rollouts INDEXED BY places "
        "WHERE example_key = ? AND superseded = 0 AND reward IS NOT NULL ORDER BY reward, line LIMIT 1"
    )
    return index.query(sql, [key])[0][0]


def scored_outcomes(index: Index) -> Iterator[Outcome]:
    """Yield the scored rollouts without superseded ones, with the values to compare."""
    columns = index.columns()
    names, weights = list(columns), _weights(index)
    selected = ", ".join(["example_key", "example", "rollout", "reward", *columns.values()])
    sql = f"SELECT {selected} FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS} AND reward IS NOT NULL ORDER BY line"
    for key, example, rollout, reward, *values in index.query(sql):
        given = {name: value for name, value in zip(names, values) if value is not None}
        scores = Scores(reward, given, weights)
        yield Outcome(key, example, rollout, None, False, scores, None)


def _weights(index: Index) -> dict[str, float]:
    """Return the weights of the reward functions in the last scored rollout."""
    sql = f"SELECT offset, size FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS} AND reward IS NOT NULL ORDER BY line DESC LIMIT 1"
    found = index.query(sql)
    if not found:
        return {}
    scores = decode_outcome(read_line(index.file, *found[0])).scores
    if scores is None:
        raise RunError(f"{index.file} does not match its index; delete the index {index.store}, rove rebuilds it")
    return scores.weights
