"""Two runs of a shelf side by side, read from their indexes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rove.core.errors import RunError
from rove.core.records import Outcome, Scores
from rove.runs.serialization import decode_outcome
from rove.statistics import compare
from rove.viewer.index import Index
from rove.viewer.queries import EVERY, SCANNED
from rove.viewer.rollouts import read_line


def compared(a: Index, b: Index, value: str, names: tuple[str, str]) -> dict[str, Any]:
    """What `rove.statistics.compare` says of the scored rollouts that count, each mover with a line in either run: that of its
    lowest reward.

    Raises:
        ConfigError: a run has no scored rollout, or not the value.
    """
    comparison = compare(scored(a), scored(b), value, names=names)
    told = msgspec.to_builtins(comparison)
    for mover in (*told["up"], *told["down"]):
        mover["lines"] = [_lowest(index, mover["example_key"]) for index in (a, b)]
    return told


def _lowest(index: Index, key: str) -> int:
    sql = (
        "SELECT line FROM rollouts INDEXED BY places "
        "WHERE example_key = ? AND superseded = 0 AND reward IS NOT NULL ORDER BY reward, line LIMIT 1"
    )
    return index.ask(sql, [key])[0][0]


def scored(index: Index) -> Iterator[Outcome]:
    """The scored rollouts that count, with what comparing needs of them."""
    columns = index.columns()
    names, weights = list(columns), _weights(index)
    selected = ", ".join(["example_key", "example", "rollout", "reward", *columns.values()])
    sql = f"SELECT {selected} FROM {SCANNED} WHERE {EVERY} AND reward IS NOT NULL ORDER BY line"
    for key, example, rollout, reward, *values in index.ask(sql):
        given = {name: value for name, value in zip(names, values) if value is not None}
        scores = Scores(reward, given, weights)
        yield Outcome(key, example, rollout, None, False, scores, None)


def _weights(index: Index) -> dict[str, float]:
    """The weights of the reward functions, as the last scored rollout has them."""
    sql = f"SELECT offset, size FROM {SCANNED} WHERE {EVERY} AND reward IS NOT NULL ORDER BY line DESC LIMIT 1"
    found = index.ask(sql)
    if not found:
        return {}
    scores = decode_outcome(read_line(index.file, *found[0])).scores
    if scores is None:
        raise RunError(
            f"{index.file} does not have what its index says; delete its index {index.store}, which is rebuilt"
        )
    return scores.weights
