"""Questions about the rollouts of a run, answered by its index: a page of rows, counts, histograms, steps.

Which rollouts are meant stands in the parameters of an address: `is.stop=answered` (any of several), `from.reward=0.5` (at
least), `to.reward=1` (below). Scores are named `score.NAME`. An empty value is one that is not there. `is.tag=good` means those
that somebody has tagged so, `is.noted=1` those with a note.
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

SCORE = "score."
NUMBERS = (
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
WORDS = ("env", "stop", "error", "example_key", "truncated", "superseded")
TAG = "tag"
"""What a rollout may have several of; it is no column."""
NOTED = {"noted": "(line IN (SELECT line FROM noted))"}
FACETS = ("env", "stop", "error", "truncated", "turns")
BARS = 20
FEW = 200
"""Different values of a column that are known in memory: a byte has room for no more than 256."""
DIGITS = bytes.maketrans(b"01", b"\0\1")
VALUES = 40
"""Values of a facet that are told, the most frequent first."""
PAGE = 500
"""Rows of a page at most."""
DEEPEST = 1 << 53

EVERY = "superseded = 0"
"""The rollouts that count, as SQL."""
SCANNED = "rollouts NOT INDEXED"
"""The table, read from one end to the other: SQLite would rather use an index that makes most questions slower."""


class Chosen(NamedTuple):
    """Some rollouts of a run, as SQL."""

    where: str
    values: list[Any]

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from other choices."""
        return self.where, *self.values


def columns(index: Index) -> dict[str, str]:
    """Everything a rollout can be chosen or sorted by → its column."""
    scores = {SCORE + name: column for name, column in index.columns().items()}
    return {name: name for name in (*NUMBERS, *WORDS)} | NOTED | scores


def choose(known: Mapping[str, str], wanted: Iterable[tuple[str, str]]) -> Chosen:
    """The rollouts that parameters of an address mean; a rollout that was repeated counts once, as in statistics.

    Args:
        known: of `columns`.
        wanted: names and values; those that say nothing of rollouts are left out.

    Raises:
        ConfigError: there is no such column, or the value is no number where one is needed.
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
        column = _column(known, name)
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
            tests = [f"{known[name]} IN ({marks})"] if given else []
            tests += [f"{known[name]} IS NULL"] if len(given) < len(listed) else []
        parts.append(f"({' OR '.join(tests)})")
        values += given
    if "superseded" not in any_of:
        parts.append(EVERY)
    return Chosen(" AND ".join(parts), values)


def _source(chosen: Chosen, column: str) -> str:
    """The table for SQLite to read: the index of rewards helps where all of them are wanted."""
    return "rollouts" if column == "reward" and chosen.where == EVERY else SCANNED


def _column(known: Mapping[str, str], name: str) -> str:
    if name not in known:
        raise ConfigError(f"rollouts have no '{name}'; {nearest(name, known)}")
    return known[name]


def _value(name: str, value: str) -> Any:
    if value == "" and name != "env":
        return None
    return value if name in WORDS[:4] else _number(name, value)


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ConfigError(f"'{name}' is compared with a number, got '{value[:80]}'")
    return number


def page(
    index: Index, chosen: Chosen, sort: str = "line", descending: bool = False, offset: int = 0, limit: int = 50
) -> dict[str, Any]:
    """Rows of some rollouts: `total` and `rows`, each a mapping with the values of FIXED, `asked`, `scores`, `tags` and `note`.

    Raises:
        ConfigError: nothing is called like `sort`, or a number is out of range.
    """
    known = columns(index)
    column = _column(known, sort)
    if not 0 <= offset < DEEPEST or not 1 <= limit <= PAGE:
        raise ConfigError(f"offset is {offset} and limit {limit}; expected 0 or more, and 1 to {PAGE}")
    [(total,)] = index.ask(f"SELECT COUNT(*) FROM {_source(chosen, column)} WHERE {chosen.where}", chosen.values)
    direction = "DESC" if descending else "ASC"
    order = ", ".join(f"{name} {direction}" for name in dict.fromkeys((column, "line")))
    inner = f"SELECT line FROM {_source(chosen, column)} WHERE {chosen.where} ORDER BY {order} LIMIT ? OFFSET ?"
    lines = [line for (line,) in index.ask(inner, [*chosen.values, limit, offset])]
    return {"total": total, "rows": rows(index, lines)}


def rows(index: Index, lines: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of these lines, in this order."""
    scores = index.columns()
    names = [*FIXED, "asked", *scores]
    columns = ", ".join([*(f"rollouts.{name}" for name in FIXED), "words", *scores.values()])
    marks = ", ".join("?" * len(lines))
    sql = f"SELECT {columns} FROM rollouts LEFT JOIN asked USING (line) WHERE rollouts.line IN ({marks})"
    fixed = len(FIXED) + 1
    found: dict[int, dict[str, Any]] = {}
    for row in index.ask(sql, lines):
        told = dict(zip(names[:fixed], row))
        told["scores"] = {name: value for name, value in zip(names[fixed:], row[fixed:]) if value is not None}
        found[row[0]] = told | {"tags": [], "note": ""}
    for line, tag in index.ask(f"SELECT line, tag FROM tagged WHERE line IN ({marks}) ORDER BY line, tag", lines):
        found[line]["tags"].append(tag)
    for line, note in index.ask(f"SELECT line, note FROM noted WHERE line IN ({marks})", lines):
        found[line]["note"] = note
    return [found[line] for line in lines if line in found]


def facet(index: Index, chosen: Chosen, name: str) -> dict[str, Any]:
    """How many of these rollouts have which value: `values` of [value, count], and how many other values there are.

    A rollout of several tags counts for each of them.
    """
    answer = partial(_tags, index, chosen) if name == TAG else partial(_facet, index, chosen, name)
    return index.remember(("facet", name, *chosen.key), answer)


def _facet(index: Index, chosen: Chosen, name: str) -> dict[str, Any]:
    column = _column(columns(index), name)
    known = index.remember(("values", column), lambda: _values(index, column))
    if known is None:
        sql = f"SELECT {column}, COUNT(*) FROM {SCANNED} WHERE {chosen.where} GROUP BY {column} ORDER BY 2 DESC, 1"
        found = index.ask(sql, chosen.values)
    else:
        counts = known.counts(_mask(index, chosen))
        found = [(value, count) for value, count in zip(known.values, counts, strict=True) if count]
        found.sort(key=lambda one: (-one[1], one[0] is not None, one[0]))
    return {"name": name, "values": found[:VALUES], "others": max(0, len(found) - VALUES)}


class _Coded(NamedTuple):
    """A column in memory: for each rollout a byte that says which of a few values it has.

    SQLite says once which rollouts are chosen (`_mask`), and all facets and histograms of a page are counted here, which takes
    it several times as long (benchmarks/RESULTS.md).
    """

    codes: bytes
    values: list[Any]

    def counts(self, mask: bytes) -> list[int]:
        """How many of the chosen rollouts have which value."""
        chosen = bytes(compress(self.codes, mask))
        return [chosen.count(code) for code in range(len(self.values))]


def _mask(index: Index, chosen: Chosen) -> bytes:
    """1 for each rollout of the table that is chosen, 0 for the others."""

    def ask() -> bytes:
        sql = f"SELECT GROUP_CONCAT(({chosen.where}) IS TRUE, '') FROM {SCANNED}"
        [(digits,)] = index.ask(sql, chosen.values)
        return (digits or "").encode().translate(DIGITS)

    return index.remember(("mask", *chosen.key), ask)


def _values(index: Index, column: str) -> _Coded | None:
    """The different values of a column; None where there are too many."""
    values = [value for (value,) in index.ask(f"SELECT {column} FROM {SCANNED}")]
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    return _Coded(bytes(map(places.__getitem__, values)), list(places)) if len(places) <= FEW else None


def _tags(index: Index, chosen: Chosen) -> dict[str, Any]:
    sql = (
        "SELECT tag, COUNT(*) FROM tagged JOIN (SELECT line AS seen FROM rollouts "
        f"WHERE line IN (SELECT line FROM tagged) AND {chosen.where}) ON seen = line GROUP BY tag ORDER BY 2 DESC, 1"
    )
    found = index.ask(sql, chosen.values)
    if found:
        none = f"SELECT COUNT(*) FROM {SCANNED} WHERE line NOT IN (SELECT line FROM tagged) AND {chosen.where}"
        found += [(None, count) for (count,) in index.ask(none, chosen.values) if count]
    return {"name": TAG, "values": found[:VALUES], "others": max(0, len(found) - VALUES)}


def histogram(index: Index, chosen: Chosen, name: str) -> dict[str, Any]:
    """How often these rollouts have which value of a number.

    The bars stay where they are whichever rollouts are chosen.

    Returns:
        `name`, `count`, `mean`, and `bars`: {"from", "to", "count"}; one of a single value has it as `value`. The last bar has no
        `to`: it takes the largest value in.

    Raises:
        ConfigError: it is no number.
    """
    return index.remember(("histogram", name, *chosen.key), partial(_histogram, index, chosen, name))


def _histogram(index: Index, chosen: Chosen, name: str) -> dict[str, Any]:
    column = _column(columns(index), name)
    if name in WORDS[:4]:
        raise ConfigError(f"'{name}' is no number; a histogram takes one, like 'reward'")
    known = index.remember(("bars", column), lambda: _bars(index, column))
    if known is None:
        return {"name": name, "count": 0, "mean": None, "bars": []}
    mask = _mask(index, chosen)
    *counts, _ = known.coded.counts(mask)
    count, total = sum(counts), _sum(compress(known.numbers, mask))
    bars = [_bar(place, known.low, known.width, count) for place, count in enumerate(counts)]
    if known.single is not None:
        bars = [{**bars[place], "value": value} for place, value in sorted(known.single.items())]
    return {
        "name": name,
        "count": count,
        "mean": total / count if count and total is not None else None,
        "low": known.low,
        "high": known.high,
        "bars": bars,
    }


def _sum(numbers: Iterable[float]) -> float | None:
    """None where the sum is larger than any number."""
    try:
        return math.fsum(numbers)
    except OverflowError:
        return None


class _Bars(NamedTuple):
    """A column of numbers, and the bars that they are drawn in."""

    coded: _Coded
    """Bars, and last what cannot be drawn."""
    numbers: array[float]
    """0 where there is none that can be drawn."""
    low: float
    high: float
    width: float
    single: dict[int, Any] | None
    """Where no two different values share a bar, the value of each bar."""


def _bars(index: Index, column: str) -> _Bars | None:
    """None where there is no number that can be drawn."""
    values = [value for (value,) in index.ask(f"SELECT CAST({column} AS REAL) FROM {SCANNED}")]
    finite = [value for value in values if value is not None and -math.inf < value < math.inf]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    width = high / BARS - low / BARS or 1.0
    edges = [_edge(place, low, width) for place in range(1, BARS)]
    codes = bytes([bisect_right(edges, value) for value in finite])
    single = None
    if len(set(finite[:FEW])) <= BARS and len(different := dict(zip(finite, codes, strict=True))) <= BARS:
        bars = {bar: value for value, bar in different.items()}
        single = bars if len(bars) == len(different) else None
    if len(finite) < len(values):
        shown = zip(codes, finite, strict=True)
        pairs = [next(shown) if value is not None and -math.inf < value < math.inf else (BARS, 0.0) for value in values]
        codes, finite = bytes([code for code, _ in pairs]), [value for _, value in pairs]
    return _Bars(_Coded(codes, list(range(BARS + 1))), array("d", finite), low, high, width, single)


def _bar(place: int, low: float, width: float, count: int) -> dict[str, Any]:
    bar: dict[str, Any] = {"from": _edge(place, low, width), "count": count}
    return {**bar, "to": _edge(place + 1, low, width)} if place < BARS - 1 else bar


def _edge(place: int, low: float, width: float) -> float:
    edge = low + place * width
    return edge if math.isfinite(edge) else 2 * (low / 2 + place * (width / 2))


def steps(index: Index) -> list[dict[str, Any]]:
    """Of every training step: its number, rollouts, `mean` and `spread` (standard deviation) of the reward, failures."""
    sql = (
        "SELECT step, COUNT(*), COUNT(reward), AVG(reward), AVG(reward * reward), MIN(line), SUM(truncated) "
        f"FROM {SCANNED} WHERE {EVERY} AND step IS NOT NULL GROUP BY step ORDER BY step"
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
        for step, count, scored, mean, squares, first, truncated in index.ask(sql)
    ]


def groups(index: Index, step_from: int, step_to: int) -> dict[str, Any]:
    """How the groups of some steps fared: a histogram of their mean rewards, and how many have no spread.

    Args:
        index: of the run.
        step_from: the first step.
        step_to: the last one.
    """
    sql = (
        f"SELECT AVG(reward), MIN(reward) = MAX(reward) FROM {SCANNED} "
        f"WHERE {EVERY} AND reward IS NOT NULL AND step BETWEEN ? AND ? GROUP BY step, example_key HAVING COUNT(*) > 1"
    )
    found = index.ask(sql, [step_from, step_to])
    means = [mean for mean, _ in found if math.isfinite(mean)]
    dead = sum(same for _, same in found)
    if not means:
        return {"groups": 0, "dead": 0, "bars": []}
    low, high = min(means), max(means)
    width = high / BARS - low / BARS or 1.0
    counts = [0] * BARS
    for mean in means:
        counts[min(BARS - 1, int((mean - low) / width))] += 1
    bars = [{"from": low + i * width, "to": low + (i + 1) * width, "count": count} for i, count in enumerate(counts)]
    return {"groups": len(found), "dead": dead, "bars": bars}
