"""Compare two runs by their indexes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from rove.core.records import Outcome, Scores
from rove.statistics import Difference, compare, t_quantile
from rove.statistics.compare import REWARD
from rove.statistics.intervals import DIGITS
from rove.viewer.index import Index
from rove.viewer.queries import CURRENT_ROLLOUTS, TABLE_SCAN, reward_weights

MAX_MOVERS = 200
"""Maximum number of examples listed per direction."""


def compare_runs(a: Index, b: Index, value: str, names: tuple[str, str], comparisons: int = 1) -> dict[str, object]:
    """Compare the scored rollouts of two runs (`rove.statistics.compare`).

    Each example whose mean changed most has its question and, for each run, the line of the rollout with the lowest reward.

    Args:
        comparisons: Number of runs that are compared with the baseline at the same time. `corrected` is the interval of the main
            difference with a confidence of 95% for all comparisons together (Bonferroni); `limit` the maximum number of
            examples in `up` and in `down`.
    """
    comparison = compare(scored_outcomes(a), scored_outcomes(b), value, names=names, movers=MAX_MOVERS)
    result = msgspec.to_builtins(comparison)
    for mover in (*result["up"], *result["down"]):
        mover["lines"] = [_lowest(index, mover["example_key"]) for index in (a, b)]
        [(question,)] = b.query("SELECT text FROM questions WHERE line = ?", [mover["lines"][1]])
        mover["question"] = question
    corrected = _corrected(comparison.main, comparisons)
    if corrected is not None and _are_binary(a, value) and _are_binary(b, value):
        # As in `compare`: a difference of two shares is between −1 and 1.
        corrected = [max(-1.0, corrected[0]), min(1.0, corrected[1])]
    return {**result, "threshold": b.pass_threshold, "limit": MAX_MOVERS, "corrected": corrected}


def _corrected(main: Difference, comparisons: int) -> list[float] | None:
    """Return the interval of a difference, wider for several comparisons; None without an interval."""
    if not (math.isfinite(main.low) and math.isfinite(main.high)):
        return None
    freedom = max(1, main.examples - 1) if main.examples else 1000
    wider = t_quantile(1 - 0.025 / comparisons, freedom) / t_quantile(0.975, freedom)
    return [main.difference + (end - main.difference) * wider for end in (main.low, main.high)]


def _are_binary(index: Index, value: str) -> bool:
    """Return whether a value is 0 or 1 in every scored rollout."""
    column = REWARD if value == REWARD else index.columns()[value]
    sql = f"SELECT COUNT(*) FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS} AND ROUND({column}, {DIGITS}) NOT IN (0, 1)"
    return index.query(sql) == [(0,)]


def _lowest(index: Index, key: str) -> int:
    sql = (
        "SELECT line FROM rollouts INDEXED BY places "
        "WHERE example_key = ? AND superseded = 0 AND reward IS NOT NULL ORDER BY reward, line LIMIT 1"
    )
    return index.query(sql, [key])[0][0]


def scored_outcomes(index: Index) -> Iterator[Outcome]:
    """Yield the scored rollouts that are not superseded, with the values to compare."""
    columns = index.columns()
    names, weights = list(columns), reward_weights(index)
    selected = ", ".join(["example_key", "example", "rollout", "reward", *columns.values()])
    sql = f"SELECT {selected} FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS} AND reward IS NOT NULL ORDER BY line"
    for key, example, rollout, reward, *values in index.query(sql):
        rewards = {name: value for name, value in zip(names, values) if value is not None}
        scores = Scores(reward, rewards, weights)
        yield Outcome(key, example, rollout, None, False, scores, None)
