"""Queries on the rollouts of a run, from its index: pages of rows, facets, histograms, training steps.

A filter consists of URL parameters: `is.stop=done` (repeat it for alternatives), `from.reward=0.5` (at least), `to.reward=1`
(below). Scores are named `score.NAME`. An empty value means a missing one. `is.tag=good` selects rollouts with this tag,
`is.noted=1` those with a note.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

from rove.core.errors import ConfigError, nearest
from rove.viewer.index import FIXED, Index

SCORE_PREFIX = "score."
NUMERIC_COLUMNS = (
    "reward",
    "turns",
    "completion_tokens",
    "prompt_tokens",
    "seconds",
    "model_seconds",
    "size",
    "retries",
    "temperature",
    "step",
    "example",
    "rollout",
    "line",
)
OTHER_COLUMNS = ("env", "stop", "error", "example_key", "truncated", "superseded")
TAG = "tag"
"""A pseudo-column: a rollout may have several tags."""
NOTED_COLUMN = {"noted": "(line IN (SELECT line FROM noted))"}
FACETS = ("env", "stop", "error", "truncated", "turns")
NUM_BARS = 20
MAX_CODED_VALUES = 200
"""Maximum number of different values of a column in memory; a byte codes at most 256."""
BIT_TABLE = bytes.maketrans(b"01", b"\0\1")
MAX_FACET_VALUES = 40
"""Values of a facet in a response, the most frequent first."""
MAX_PAGE_ROWS = 500
"""Maximum rows of a page."""
MAX_INTEGER = 1 << 53

CURRENT_ROLLOUTS = "superseded = 0"
"""SQL condition: rollouts that no later line repeats."""
TABLE_SCAN = "rollouts NOT INDEXED"
"""SQL table with a full scan: SQLite would prefer an index, which is slower for most of these queries."""


class Filter(NamedTuple):
    """A selection of rollouts, as SQL."""

    where: str
    values: list[Any]

    @property
    def key(self) -> tuple[Any, ...]:
        """A hashable key of the filter."""
        return self.where, *self.values


def columns(index: Index) -> dict[str, str]:
    """Return everything that rollouts can be filtered or sorted by → its SQL expression."""
    scores = {SCORE_PREFIX + name: column for name, column in index.columns().items()}
    return {name: name for name in (*NUMERIC_COLUMNS, *OTHER_COLUMNS)} | NOTED_COLUMN | scores


def parse_filter(available: Mapping[str, str], wanted: Iterable[tuple[str, str]]) -> Filter:
    """Return the filter of URL parameters; without another condition it excludes superseded rollouts, as statistics do.

    Args:
        available: From `columns`.
        wanted: Names and values; other parameters are ignored.

    Raises:
        ConfigError: A column does not exist, or a value is not a number.
    """
    any_of: dict[str, list[Any]] = {}
    parts, values = [], []
    for key, value in wanted:
        kind, dot, name = key.partition(".")
        if not dot or kind not in ("is", "from", "to"):
            continue
        if (kind, name) == ("is", TAG):
            any_of.setdefault(TAG, []).append(value or None)
            continue
        column = _column(available, name)
        if kind == "is":
            any_of.setdefault(name, []).append(_value(name, value))
        else:
            parts.append(f"{column} {'>=' if kind == 'from' else '<'} ?")
            values.append(_number(name, value))
    for name, listed in any_of.items():
        given = [value for value in listed if value is not None]
        marks = ", ".join("?" * len(given))
        if name == TAG:
            tests = [f"line IN (SELECT line FROM tagged WHERE tag IN ({marks}))"] if given else []
            tests += ["line NOT IN (SELECT line FROM tagged)"] if len(given) < len(listed) else []
        else:
            tests = [f"{available[name]} IN ({marks})"] if given else []
            tests += [f"{available[name]} IS NULL"] if len(given) < len(listed) else []
        parts.append(f"({' OR '.join(tests)})")
        values += given
    if "superseded" not in any_of:
        parts.append(CURRENT_ROLLOUTS)
    return Filter(" AND ".join(parts), values)


def _source(rows_filter: Filter, column: str) -> str:
    """Return the table to read; the index of rewards helps if all current rollouts are read."""
    return "rollouts" if column == "reward" and rows_filter.where == CURRENT_ROLLOUTS else TABLE_SCAN


def _column(available: Mapping[str, str], name: str) -> str:
    if name not in available:
        raise ConfigError(f"rollouts have no column '{name}'; {nearest(name, available)}")
    return available[name]


def _value(name: str, value: str) -> Any:
    if value == "" and name != "env":
        return None
    return value if name in OTHER_COLUMNS[:4] else _number(name, value)


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ConfigError(f"the value for '{name}' is '{value[:80]}'; expected a number")
    return number


def page(
    index: Index, rows_filter: Filter, sort: str = "line", descending: bool = False, offset: int = 0, limit: int = 50
) -> dict[str, Any]:
    """Return `total` and `rows` of a filter; a row has the values of FIXED, `question`, `scores`, `tags` and `note`.

    Raises:
        ConfigError: There is no such column, or a number is out of range.
    """
    available = columns(index)
    column = _column(available, sort)
    if not 0 <= offset < MAX_INTEGER or not 1 <= limit <= MAX_PAGE_ROWS:
        raise ConfigError(f"offset is {offset} and limit {limit}; expected 0 or more, and 1 to {MAX_PAGE_ROWS}")
    [(total,)] = index.query(
        f"SELECT COUNT(*) FROM {_source(rows_filter, column)} WHERE {rows_filter.where}", rows_filter.values
    )
    direction = "DESC" if descending else "ASC"
    order = ", ".join(f"{name} {direction}" for name in dict.fromkeys((column, "line")))
    inner = (
        f"SELECT line FROM {_source(rows_filter, column)} WHERE {rows_filter.where} ORDER BY {order} LIMIT ? OFFSET ?"
    )
    lines = [line for (line,) in index.query(inner, [*rows_filter.values, limit, offset])]
    return {"total": total, "rows": rows(index, lines)}


def rows(index: Index, lines: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rows of these lines, in this order."""
    scores = index.columns()
    names = [*FIXED, "question", *scores]
    columns = ", ".join([*(f"rollouts.{name}" for name in FIXED), "text", *scores.values()])
    marks = ", ".join("?" * len(lines))
    sql = f"SELECT {columns} FROM rollouts LEFT JOIN questions USING (line) WHERE rollouts.line IN ({marks})"
    fixed = len(FIXED) + 1
    found: dict[int, dict[str, Any]] = {}
    for row in index.query(sql, lines):
        row_values = dict(zip(names[:fixed], row))
        row_values["scores"] = {name: value for name, value in zip(names[fixed:], row[fixed:]) if value is not None}
        found[row[0]] = row_values | {"tags": [], "note": ""}
    for line, tag in index.query(f"SELECT line, tag FROM tagged WHERE line IN ({marks}) ORDER BY line, tag", lines):
        found[line]["tags"].append(tag)
    for line, note in index.query(f"SELECT line, note FROM noted WHERE line IN ({marks})", lines):
        found[line]["note"] = note
    return [found[line] for line in lines if line in found]


def facet(index: Index, rows_filter: Filter, name: str) -> dict[str, Any]:
    """Count the rollouts per value of a column: `values` of [value, count], and the number of other values.

    A rollout with several tags counts for each.
    """
    answer = partial(_tags, index, rows_filter) if name == TAG else partial(_facet, index, rows_filter, name)
    return index.cached(("facet", name, *rows_filter.key), answer)


def _facet(index: Index, rows_filter: Filter, name: str) -> dict[str, Any]:
    column = _column(columns(index), name)
    available = index.cached(("values", column), lambda: _values(index, column))
    if available is None:
        sql = f"SELECT {column}, COUNT(*) FROM {TABLE_SCAN} WHERE {rows_filter.where} GROUP BY {column} ORDER BY 2 DESC, 1"
        found = index.query(sql, rows_filter.values)
    else:
        counts = available.counts(_mask(index, rows_filter))
        found = [(value, count) for value, count in zip(available.values, counts, strict=True) if count]
        found.sort(key=lambda one: (-one[1], one[0] is not None, one[0]))
    return {"name": name, "values": found[:MAX_FACET_VALUES], "others": max(0, len(found) - MAX_FACET_VALUES)}


class _CodedColumn(NamedTuple):
    """A column in memory: a byte per rollout codes its value.

    SQLite evaluates a filter once (`_mask`); facets and histograms are counted here, several times as fast as in SQL
    (benchmarks/RESULTS.md).
    """

    codes: bytes
    values: list[Any]

    def counts(self, mask: bytes) -> list[int]:
        """Count the selected rollouts per value."""
        rows_filter = bytes(compress(self.codes, mask))
        return [rows_filter.count(code) for code in range(len(self.values))]


def _mask(index: Index, rows_filter: Filter) -> bytes:
    """Return one byte per rollout: 1 if it is selected, else 0."""

    def find() -> bytes:
        sql = f"SELECT GROUP_CONCAT(({rows_filter.where}) IS TRUE, '') FROM {TABLE_SCAN}"
        [(digits,)] = index.query(sql, rows_filter.values)
        return (digits or "").encode().translate(BIT_TABLE)

    return index.cached(("mask", *rows_filter.key), find)


def _values(index: Index, column: str) -> _CodedColumn | None:
    """Return a column in memory; None if it has too many different values."""
    values = [value for (value,) in index.query(f"SELECT {column} FROM {TABLE_SCAN}")]
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    return (
        _CodedColumn(bytes(map(places.__getitem__, values)), list(places)) if len(places) <= MAX_CODED_VALUES else None
    )


def _tags(index: Index, rows_filter: Filter) -> dict[str, Any]:
    sql = (
        "SELECT tag, COUNT(*) FROM tagged JOIN (SELECT line AS seen FROM rollouts "
        f"WHERE line IN (SELECT line FROM tagged) AND {rows_filter.where}) ON seen = line GROUP BY tag ORDER BY 2 DESC, 1"
    )
    found = index.query(sql, rows_filter.values)
    if found:
        none = f"SELECT COUNT(*) FROM {TABLE_SCAN} WHERE line NOT IN (SELECT line FROM tagged) AND {rows_filter.where}"
        found += [(None, count) for (count,) in index.query(none, rows_filter.values) if count]
    return {"name": TAG, "values": found[:MAX_FACET_VALUES], "others": max(0, len(found) - MAX_FACET_VALUES)}


def histogram(index: Index, rows_filter: Filter, name: str) -> dict[str, Any]:
    """Return the histogram of a numeric column; the bars are the same for every filter.

    Returns:
        `name`, `count`, `mean`, and `bars`: {"from", "to", "count"}, with `value` if a bar has a single value. The last bar has
        no `to`: it includes the maximum.

    Raises:
        ConfigError: The column is not numeric.
    """
    return index.cached(("histogram", name, *rows_filter.key), partial(_histogram, index, rows_filter, name))


def _histogram(index: Index, rows_filter: Filter, name: str) -> dict[str, Any]:
    column = _column(columns(index), name)
    if name in OTHER_COLUMNS[:4]:
        raise ConfigError(f"the column '{name}' is not numeric; choose one like 'reward'")
    available = index.cached(("bars", column), lambda: _bars(index, column))
    if available is None:
        return {"name": name, "count": 0, "mean": None, "bars": []}
    mask = _mask(index, rows_filter)
    *counts, _ = available.coded.counts(mask)
    count, total = sum(counts), _sum(compress(available.numbers, mask))
    bars = [_bar(place, available.low, available.width, count) for place, count in enumerate(counts)]
    if available.single is not None:
        bars = [{**bars[place], "value": value} for place, value in sorted(available.single.items())]
    return {
        "name": name,
        "count": count,
        "mean": total / count if count and total is not None else None,
        "low": available.low,
        "high": available.high,
        "bars": bars,
    }


def _sum(numbers: Iterable[float]) -> float | None:
    """Return the sum; None if it overflows."""
    try:
        return math.fsum(numbers)
    except OverflowError:
        return None


class _BarColumn(NamedTuple):
    """A numeric column in memory, with its bars."""

    coded: _CodedColumn
    """Codes of the bars; the last one is for values that cannot be drawn."""
    numbers: array[float]
    """The values; 0 for those that cannot be drawn."""
    low: float
    high: float
    width: float
    single: dict[int, Any] | None
    """The value of each bar if no bar has two different ones."""


def _bars(index: Index, column: str) -> _BarColumn | None:
    """Return a column with its bars; None without a finite number."""
    values = [value for (value,) in index.query(f"SELECT CAST({column} AS REAL) FROM {TABLE_SCAN}")]
    finite = [value for value in values if value is not None and -math.inf < value < math.inf]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    width = high / NUM_BARS - low / NUM_BARS or 1.0
    edges = [_edge(place, low, width) for place in range(1, NUM_BARS)]
    codes = bytes([bisect_right(edges, value) for value in finite])
    single = None
    if (
        len(set(finite[:MAX_CODED_VALUES])) <= NUM_BARS
        and len(different := dict(zip(finite, codes, strict=True))) <= NUM_BARS
    ):
        bars = {bar: value for value, bar in different.items()}
        single = bars if len(bars) == len(different) else None
    if len(finite) < len(values):
        shown = zip(codes, finite, strict=True)
        pairs = [
            next(shown) if value is not None and -math.inf < value < math.inf else (NUM_BARS, 0.0) for value in values
        ]
        codes, finite = bytes([code for code, _ in pairs]), [value for _, value in pairs]
    return _BarColumn(_CodedColumn(codes, list(range(NUM_BARS + 1))), array("d", finite), low, high, width, single)


def _bar(place: int, low: float, width: float, count: int) -> dict[str, Any]:
    bar: dict[str, Any] = {"from": _edge(place, low, width), "count": count}
    return {**bar, "to": _edge(place + 1, low, width)} if place < NUM_BARS - 1 else bar


def _edge(place: int, low: float, width: float) -> float:
    edge = low + place * width
    return edge if math.isfinite(edge) else 2 * (low / 2 + place * (width / 2))


def steps(index: Index) -> list[dict[str, Any]]:
    """Return, per training step, its number, rollouts, `mean` and `spread` (standard deviation) of the reward, and failures."""
    sql = (
        "SELECT step, COUNT(*), COUNT(reward), AVG(reward), AVG(reward * reward), MIN(line), SUM(truncated) "
        f"FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS} AND step IS NOT NULL GROUP BY step ORDER BY step"
    )
    return [
        {
            "step": step,
            "rollouts": count,
            "failed": count - scored,
            "mean": mean,
            "spread": None if mean is None else math.sqrt(max(0.0, squares - mean * mean)),
            "first": first,
            "truncated": truncated,
        }
        for step, count, scored, mean, squares, first, truncated in index.query(sql)
    ]


def groups(index: Index, step_from: int, step_to: int) -> dict[str, Any]:
    """Return a histogram of the mean rewards of groups in some steps, and the number of zero-advantage groups.

    Args:
        index: Index of the run.
        step_from: First step.
        step_to: Last step, included.
    """
    sql = (
        f"SELECT AVG(reward), MIN(reward) = MAX(reward) FROM {TABLE_SCAN} "
        f"WHERE {CURRENT_ROLLOUTS} AND reward IS NOT NULL AND step BETWEEN ? AND ? GROUP BY step, example_key HAVING COUNT(*) > 1"
    )
    found = index.query(sql, [step_from, step_to])
    means = [mean for mean, _ in found if math.isfinite(mean)]
    dead = sum(same for _, same in found)
    if not means:
        return {"groups": 0, "dead": 0, "bars": []}
    low, high = min(means), max(means)
    width = high / NUM_BARS - low / NUM_BARS or 1.0
    counts = [0] * NUM_BARS
    for mean in means:
        counts[min(NUM_BARS - 1, int((mean - low) / width))] += 1
    bars = [{"from": low + i * width, "to": low + (i + 1) * width, "count": count} for i, count in enumerate(counts)]
    return {"groups": len(found), "dead": dead, "bars": bars}
