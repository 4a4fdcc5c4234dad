"""Queries on the rollouts of a run, from its index: pages of rows, facets, histograms, reasons for failures.

A filter consists of URL parameters: `is.stop=done` (repeat it for alternatives), `from.reward=0.5` (at least), `to.reward=1`
(below). Scores are named `score.NAME`, fields of the rows' `info` are named `info.NAME`. An empty value selects rollouts
without a value. `is.tag=good` selects rollouts with this tag; `is.noted=1` selects rollouts with a note.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from typing import NamedTuple

from rove.core.errors import ConfigError, RunError, nearest
from rove.core.plain import JsonObject, JsonValue
from rove.runs.serialization import decode_outcome
from rove.statistics.summary import TOLERANCE
from rove.viewer.html import finite
from rove.viewer.index import FIXED, Index
from rove.viewer.rollouts import read_line

SCORE_PREFIX = "score."
INFO_PREFIX = "info."
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
TEXT_COLUMNS = ("env", "stop", "error", "example_key", "outcome", "answer", "reply")
FLAG_COLUMNS = ("truncated", "superseded")
TAG = "tag"
"""A pseudo-column: a rollout may have several tags."""
NOTED_COLUMN = {"noted": "(line IN (SELECT line FROM noted))"}
NUM_BARS = 10
"""Number of bars of a histogram; they are buttons and need some width."""
MAX_CODED_VALUES = 200
"""Maximum number of different values of a column that is held in memory as one byte per rollout, which can code 256 values."""
BIT_TABLE = bytes.maketrans(b"01", b"\0\1")
MAX_INFO_CHOICES, MAX_INFO_VALUES = 8, 12
"""Maximum number of fields of `info` that are offered as filters, and of the different values of each: an id is no choice."""
MAX_FACET_VALUES = 40
"""Maximum number of values of a facet in a response, the most frequent first."""
MAX_PAGE_ROWS = 500
"""Maximum number of rows of a page."""
MAX_UNCACHED_ROWS = 2000
"""Pages within this many rows from the start are sorted for every request; for later pages, the whole order is kept in memory."""
MAX_REASONS = 8
"""Maximum number of groups of failing rollouts per kind, the largest first."""
MAX_PATTERN_SCORES, MAX_PATTERN_VALUES = 6, 4
"""Maximum number of scores in a pattern, and of different values of each score."""
MAX_PREPARED_SCORES = 12
"""Maximum number of scores whose columns are read in advance."""
MAX_INTEGER = 1 << 53  # integers of JavaScript are exact below

CURRENT_ROLLOUTS = "superseded = 0"
"""SQL condition: rollouts that no later line repeats."""
TABLE_SCAN = "rollouts NOT INDEXED"
"""SQL table with a full scan: SQLite would prefer an index, which is slower for most of these queries."""


class Filter(NamedTuple):
    """A selection of rollouts, as SQL."""

    where: str
    values: list[JsonValue]

    @property
    def key(self) -> tuple[JsonValue, ...]:
        """A hashable key of the filter."""
        return self.where, *self.values


def columns(index: Index) -> dict[str, str]:
    """Return the SQL expressions of all columns by which rollouts can be filtered or sorted."""
    passed = f"CASE WHEN reward >= {index.pass_threshold - TOLERANCE!r} THEN 'passed' WHEN reward IS NOT NULL THEN 'below' END"
    text = "(SELECT {} FROM questions WHERE questions.line = rollouts.line)"
    expressions = {
        "outcome": f"(CASE WHEN error IS NOT NULL THEN 'failed' ELSE {passed} END)",
        "answer": text.format("answer"),
        "reply": text.format("reply"),
    }
    scores = {SCORE_PREFIX + name: column for name, column in index.columns().items()}
    # The SQL has their numbers and not their names, which may contain anything, also SQL.
    info = {
        INFO_PREFIX + name: text.format(f"json_extract(info, '$[{number}]')")
        for number, name in enumerate(index.info_fields())
    }
    names = {name: name for name in (*NUMERIC_COLUMNS, *TEXT_COLUMNS, *FLAG_COLUMNS)}
    return names | expressions | NOTED_COLUMN | scores | info


def parse_filter(available: Mapping[str, str], conditions: Iterable[tuple[str, str]]) -> Filter:
    """Return the filter for URL parameters. Like statistics, it excludes superseded rollouts unless a condition names them.

    Args:
        conditions: Names and values; other parameters are ignored.
    """
    any_of: dict[str, list[object]] = {}
    parts, values = [], []
    for key, value in conditions:
        kind, dot, name = key.partition(".")
        if not dot or kind not in ("is", "from", "to"):
            continue
        if (kind, name) == ("is", TAG):
            any_of.setdefault(TAG, []).append(value or None)
            continue
        column = _column(available, name)
        if kind == "is":
            any_of.setdefault(name, []).extend(_values(name, value))
        else:
            parts.append(f"{column} {'>=' if kind == 'from' else '<'} ?")
            if name.startswith(INFO_PREFIX):  # to SQLite, every text is greater than any number
                parts.append(f"typeof({column}) IN ('integer', 'real')")
            values.append(_number(name, value))
    for name, listed in any_of.items():
        listed_values = [value for value in listed if value is not None]
        marks = ", ".join("?" * len(listed_values))
        if name == TAG:
            is_listed = f"line IN (SELECT line FROM tagged WHERE tag IN ({marks}))"
            has_none = "line NOT IN (SELECT line FROM tagged)"
        else:
            is_listed = f"{available[name]} IN ({marks})"
            has_none = f"{available[name]} IS NULL"
        tests = [is_listed] if listed_values else []
        if len(listed_values) < len(listed):
            tests.append(has_none)
        parts.append(f"({' OR '.join(tests)})")
        values += listed_values
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


def _values(name: str, value: str) -> list[object]:
    """Return the values that a condition selects; None selects rollouts without a value."""
    if value == "" and name != "env":
        return [None]
    if name in TEXT_COLUMNS:
        return [value]
    if name.startswith(INFO_PREFIX):  # "3" may be a number in some rows and a text in others
        with suppress(ConfigError):
            return [value, _number(name, value)]
        return [value]
    return [_number(name, value)]


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
) -> JsonObject:
    """Return `total` and `rows` of a filter.

    A row has the values of `FIXED`, the `question`, the expected `answer`, the model's `reply`, `scores`, `tags` and `note`.
    """
    available = columns(index)
    column = _column(available, sort)
    if not 0 <= offset < MAX_INTEGER or not 1 <= limit <= MAX_PAGE_ROWS:
        raise ConfigError(f"offset is {offset} and limit {limit}; expected 0 or more, and 1 to {MAX_PAGE_ROWS}")
    selected = f"FROM {_source(rows_filter, column)} WHERE {rows_filter.where}"

    def count() -> int:
        return index.query(f"SELECT COUNT(*) {selected}", rows_filter.values)[0][0]  # pyright: ignore[reportReturnType]

    direction = "DESC" if descending else "ASC"
    order = ", ".join(f"{name} {direction}" for name in dict.fromkeys((column, "line")))
    if offset + limit <= MAX_UNCACHED_ROWS:
        sql = f"SELECT line {selected} ORDER BY {order} LIMIT ? OFFSET ?"
        lines = [line for (line,) in index.query(sql, [*rows_filter.values, limit, offset])]
    else:  # a user scrolls far down: sort once
        sorted_lines = index.cached(
            ("sorted", column, *rows_filter.key), partial(_sorted_lines, index, rows_filter, column)
        )
        lines = sorted_lines[::-1][offset : offset + limit] if descending else sorted_lines[offset : offset + limit]
    return {"total": index.cached(("count", *rows_filter.key), count), "rows": rows(index, lines)}


def _sorted_lines(index: Index, rows_filter: Filter, column: str) -> array[int]:
    """Return the lines of a filter in the order of a column; the whole column is sorted once for all filters."""

    def find() -> array[int]:
        table = "rollouts" if column == "reward" else TABLE_SCAN
        order = ", ".join(dict.fromkeys((column, "line")))
        return array("q", [line for (line,) in index.query(f"SELECT line FROM {table} ORDER BY {order}")])

    lines = index.cached(("order", column), find)
    mask = _mask(index, rows_filter)
    selected = bytearray(max(lines, default=-1) + 1)
    for line in _lines(index, mask):
        selected[line] = 1
    return array("q", compress(lines, map(selected.__getitem__, lines)))


def rows(index: Index, lines: Sequence[int]) -> list[JsonObject]:
    """Return the rows of these lines, in this order."""
    scores = index.columns()
    names = [*FIXED, "question", "answer", "reply", *scores]
    columns = ", ".join([*(f"rollouts.{name}" for name in FIXED), "text", "answer", "reply", *scores.values()])
    marks = ", ".join("?" * len(lines))
    sql = f"SELECT {columns} FROM rollouts LEFT JOIN questions USING (line) WHERE rollouts.line IN ({marks})"
    fixed = len(FIXED) + 3
    rows: dict[int, JsonObject] = {}
    for row in index.query(sql, lines):
        row_values = dict(zip(names[:fixed], row))
        row_scores = zip(names[fixed:], row[fixed:])
        row_values["scores"] = {name: value for name, value in row_scores if value is not None}
        rows[row[0]] = row_values | {"tags": [], "note": ""}
    for line, tag in index.query(f"SELECT line, tag FROM tagged WHERE line IN ({marks}) ORDER BY line, tag", lines):
        rows[line]["tags"].append(tag)
    for line, note in index.query(f"SELECT line, note FROM noted WHERE line IN ({marks})", lines):
        rows[line]["note"] = note
    return [rows[line] for line in lines if line in rows]


def info_choices(index: Index) -> list[str]:
    """Return the columns of the rows' `info` that have few different values, which the page offers as filters."""

    def find() -> list[str]:
        info = {name: column for name, column in columns(index).items() if name.startswith(INFO_PREFIX)}
        coded = {name: _column_values(index, column) for name, column in info.items()}
        choices = [name for name, values in coded.items() if values and 1 < len(values.values) <= MAX_INFO_VALUES]
        return choices[:MAX_INFO_CHOICES]

    return index.cached("info choices", find)


def facet(index: Index, rows_filter: Filter, name: str) -> JsonObject:
    """Count the rollouts per value of a column: `values` of [value, count], and the number of other values.

    A rollout with several tags counts for each tag.
    """
    answer = partial(_tags, index, rows_filter) if name == TAG else partial(_facet, index, rows_filter, name)
    return index.cached(("facet", name, *rows_filter.key), answer)


def _facet(index: Index, rows_filter: Filter, name: str) -> dict[str, object]:
    column = _column(columns(index), name)
    # GROUP BY sorts 400,000 values in hundreds of milliseconds; counting bytes takes tens (docs/decisions/viewer.md).
    available = _column_values(index, column)
    if available is None:
        sql = f"SELECT {column}, COUNT(*) FROM {TABLE_SCAN} WHERE {rows_filter.where} GROUP BY {column} ORDER BY 2 DESC, 1"
        counted = index.query(sql, rows_filter.values)
    else:
        counts = available.counts(_mask(index, rows_filter))
        counted = [(value, count) for value, count in zip(available.values, counts, strict=True) if count]
        # A field of `info` may have texts and numbers, which cannot be compared.
        counted.sort(key=lambda pair: (-pair[1], pair[0] is not None, isinstance(pair[0], str), pair[0]))
    return {"name": name, "values": counted[:MAX_FACET_VALUES], "others": max(0, len(counted) - MAX_FACET_VALUES)}


def prepare(index: Index) -> Iterator[str]:
    """Read the columns that a page of rollouts counts, one column whenever the iterator advances; yield their names.

    After that, the first facet, histogram or call of `reasons` is as fast as later ones.
    """
    available = columns(index)
    scores = [name for name in available if name.startswith(SCORE_PREFIX)][:MAX_PREPARED_SCORES]
    for name in ("reward", *scores, "turns", "completion_tokens", "seconds"):
        yield name
        _bar_column(index, available[name])
    for name in ("outcome", "stop", "error", "env", *FLAG_COLUMNS, "reply", *scores, *info_choices(index)):
        yield name
        _column_values(index, available[name])


class _CodedColumn(NamedTuple):
    """A column in memory: a byte per rollout codes its value.

    SQLite evaluates a filter once (`_mask`); facets and histograms are counted here, several times as fast as in SQL
    (benchmarks/RESULTS.md).
    """

    codes: bytes
    values: list[JsonValue]

    def counts(self, mask: bytes) -> list[int]:
        """Count the selected rollouts per value."""
        selected_codes = bytes(compress(self.codes, mask))
        return [selected_codes.count(code) for code in range(len(self.values))]


def _mask(index: Index, rows_filter: Filter) -> bytes:
    """Return one byte per rollout: 1 if it is selected, else 0."""

    def find() -> bytes:
        sql = f"SELECT GROUP_CONCAT(({rows_filter.where}) IS TRUE, '') FROM {TABLE_SCAN}"
        [(digits,)] = index.query(sql, rows_filter.values)
        return (digits or "").encode().translate(BIT_TABLE)

    return index.cached(("mask", *rows_filter.key), find)


def _column_values(index: Index, column: str) -> _CodedColumn | None:
    """Return a column in memory; None if it has too many different values."""
    sql = f"SELECT {column} FROM {TABLE_SCAN}"
    return index.cached(("values", column), lambda: _code([value for (value,) in index.query(sql)]))


def _code(values: Sequence[object]) -> _CodedColumn | None:
    if len(set(values[: 2 * MAX_CODED_VALUES])) > MAX_CODED_VALUES:
        return None
    codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
    if len(codes) > MAX_CODED_VALUES:
        return None
    return _CodedColumn(bytes(map(codes.__getitem__, values)), list(codes))


def _tags(index: Index, rows_filter: Filter) -> dict[str, object]:
    sql = (
        "SELECT tag, COUNT(*) FROM tagged JOIN (SELECT line AS seen FROM rollouts "
        f"WHERE line IN (SELECT line FROM tagged) AND {rows_filter.where}) ON seen = line GROUP BY tag ORDER BY 2 DESC, 1"
    )
    counted = index.query(sql, rows_filter.values)
    if counted:
        none = f"SELECT COUNT(*) FROM {TABLE_SCAN} WHERE line NOT IN (SELECT line FROM tagged) AND {rows_filter.where}"
        counted += [(None, count) for (count,) in index.query(none, rows_filter.values) if count]
    return {"name": TAG, "values": counted[:MAX_FACET_VALUES], "others": max(0, len(counted) - MAX_FACET_VALUES)}


def histogram(index: Index, rows_filter: Filter, name: str) -> JsonObject:
    """Return the histogram of a numeric column; the bars are the same for every filter.

    Returns:
        `name`, `count`, `mean`, and `bars`: {"from", "to", "count"}, with `value` if a bar has a single value. The last bar has
        no `to`: it includes the maximum.
    """
    return index.cached(("histogram", name, *rows_filter.key), partial(_histogram, index, rows_filter, name))


def _histogram(index: Index, rows_filter: Filter, name: str) -> dict[str, object]:
    column = _column(columns(index), name)
    if name in TEXT_COLUMNS:
        raise ConfigError(f"the column '{name}' is not numeric; choose one like 'reward'")
    available = _bar_column(index, column)
    if available is None:
        return {"name": name, "count": 0, "mean": None, "bars": []}
    mask = _mask(index, rows_filter)
    *counts, _ = available.coded.counts(mask)
    count, total = sum(counts), _sum(compress(available.numbers, mask))
    bars = [_bar(position, available.low, available.width, count) for position, count in enumerate(counts)]
    if available.single is not None:
        bars = [{**bars[position], "value": value} for position, value in sorted(available.single.items())]
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
    """A numeric column in memory, with the bars of its histogram."""

    coded: _CodedColumn
    """Codes of the bars; the last code is for values that cannot be drawn."""
    numbers: array[float]
    """The values; 0 for values that cannot be drawn."""
    low: float
    high: float
    width: float
    single: dict[int, JsonValue] | None
    """The value of each bar, if no bar has two different values."""


def _bar_column(index: Index, column: str) -> _BarColumn | None:
    """Return a column with its bars; None if it has no finite number."""
    return index.cached(("bars", column), partial(_bars, index, column))


def _bars(index: Index, column: str) -> _BarColumn | None:
    number = f"CASE WHEN typeof({column}) != 'text' THEN CAST({column} AS REAL) END"  # SQLite would read a text as 0
    values = [value for (value,) in index.query(f"SELECT {number} FROM {TABLE_SCAN}")]
    is_finite = [value is not None and -math.inf < value < math.inf for value in values]
    finite = list(compress(values, is_finite))
    if not finite:
        return None
    low, high = min(finite), max(finite)
    width = high / NUM_BARS - low / NUM_BARS or 1.0  # divide first: the difference may overflow
    edges = [_edge(position, low, width) for position in range(1, NUM_BARS)]
    codes = bytes(map(partial(bisect_right, edges), finite))
    single = _single_values(finite, codes)
    if len(finite) < len(values):
        finite_pairs = zip(codes, finite, strict=True)
        pairs = [next(finite_pairs) if can_be_drawn else (NUM_BARS, 0.0) for can_be_drawn in is_finite]
        codes, finite = bytes([code for code, _ in pairs]), [value for _, value in pairs]
    return _BarColumn(_CodedColumn(codes, list(range(NUM_BARS + 1))), array("d", finite), low, high, width, single)


def _single_values(values: Sequence[JsonValue], bars: bytes) -> dict[int, JsonValue] | None:
    """Return the value of each bar that has values; None if a bar has two different values."""
    if len(set(values[:MAX_CODED_VALUES])) > NUM_BARS:  # spares a large column the dictionary below
        return None
    bar_of = dict(zip(values, bars, strict=True))
    single = {bar: value for value, bar in bar_of.items()}
    return single if len(single) == len(bar_of) else None


def _bar(position: int, low: float, width: float, count: int) -> dict[str, object]:
    bar: dict[str, object] = {"from": _edge(position, low, width), "count": count}
    return {**bar, "to": _edge(position + 1, low, width)} if position < NUM_BARS - 1 else bar


def _edge(position: int, low: float, width: float) -> float:
    edge = low + position * width
    return edge if math.isfinite(edge) else 2 * (low / 2 + position * (width / 2))


def reward_range(index: Index) -> tuple[float, float]:
    """Return the range of rewards to which colors and bars refer.

    It contains 0, the observed rewards, and all rewards possible under the rubric's weights if each function is between
    0 and 1.
    """

    def find() -> tuple[float, float]:
        sql = f"SELECT MIN(reward), MAX(reward) FROM rollouts WHERE {CURRENT_ROLLOUTS}"
        bounds = [value for value in index.query(sql)[0] if finite(value) is not None]
        try:
            weights = [value for value in reward_weights(index).values() if math.isfinite(value)]
        except RunError:  # the run has just been restarted
            weights = []
        low = min([0.0, sum(value for value in weights if value < 0), *bounds])
        high = max([0.0, sum(value for value in weights if value > 0), *bounds])
        return (low, high) if low < high else (0.0, 1.0)

    return index.cached("range", find)


def reward_weights(index: Index) -> dict[str, float]:
    """Return the weights of the reward functions in the last scored rollout; {} if no rollout is scored."""
    sql = f"SELECT offset, size FROM {TABLE_SCAN} WHERE {CURRENT_ROLLOUTS} AND reward IS NOT NULL ORDER BY line DESC LIMIT 1"
    rows = index.query(sql)
    if not rows:
        return {}
    scores = decode_outcome(read_line(index.file, *rows[0])).scores
    if scores is None:
        raise RunError(f"{index.file} does not match its index; delete the index {index.store}, rove rebuilds it")
    return scores.weights


def reasons(index: Index, rows_filter: Filter) -> dict[str, object]:
    """Group the rollouts that failed or are below the pass threshold.

    Returns:
        `total`, and `groups`: kind ("error", "stop reason", "scores" or "answer"), label, count, line of the first rollout, and
        the filter that selects them, as pairs. A rollout is in at most one group of each kind.
    """
    return index.cached(("reasons", *rows_filter.key), partial(_reasons, index, rows_filter))


def _reasons(index: Index, rows_filter: Filter) -> dict[str, object]:
    available = columns(index)
    weighted = [SCORE_PREFIX + name for name, weight in reward_weights(index).items() if weight]
    scores = [name for name in weighted if name in available]
    if not scores:
        scores = [name for name in available if name.startswith(SCORE_PREFIX)]
    scores = scores[: 2 * MAX_PATTERN_SCORES]
    error, outcome, stop, reply, *patterns = _coded_columns(index, ["error", "outcome", "stop", "reply", *scores])
    failing = _both(_mask(index, rows_filter), _is_any(outcome, ("failed", "below")))
    stopped = _both(failing, _is_any(error, (None,)))
    lines = _lines(index, failing)
    groups = [
        *_largest("error", {"error": error}, failing, lines),
        *_largest("stop reason", {"stop": stop}, stopped, _lines(index, stopped)),
        *_largest("scores", _pattern_scores(dict(zip(scores, patterns, strict=True)), failing), failing, lines),
        *_largest("answer", {"reply": reply}, stopped, _lines(index, stopped), fewest=2),
    ]
    return {"total": failing.count(1), "groups": groups}


class _Values(NamedTuple):
    """A column as values, or as codes that `values` decodes."""

    codes: Sequence[JsonValue]
    values: Sequence[JsonValue] | None = None

    def value_of(self, code: JsonValue) -> JsonValue:
        """Decode a code."""
        return code if self.values is None else self.values[code]


def _coded_columns(index: Index, names: Sequence[str]) -> list[_Values]:
    """Return columns as codes if they have few different values, otherwise as values; scores need no values.

    Columns that are not in memory are read together.
    """
    available = columns(index)
    read: dict[str, Sequence[object]] = {}

    def together(name: str) -> _CodedColumn | None:
        if not read:
            expressions = ", ".join(available[name] for name in names)
            rows = index.query(f"SELECT {expressions} FROM {TABLE_SCAN}")
            read.update(zip(names, zip(*rows), strict=True) if rows else dict.fromkeys(names, ()))
        return _code(read[name])

    def uncoded(name: str) -> Sequence[object]:
        if read or name.startswith(SCORE_PREFIX):
            return read.get(name, ())
        sql = f"SELECT {available[name]} FROM {TABLE_SCAN}"
        if name == "reply":
            sql = "SELECT reply FROM questions ORDER BY line"
        return [value for (value,) in index.query(sql)]

    columns_by_name = []
    for name in names:
        coded = index.cached(("values", available[name]), partial(together, name))
        columns_by_name.append(_Values(uncoded(name)) if coded is None else _Values(coded.codes, coded.values))
    return columns_by_name


def _is_any(column: _Values, values: Sequence[object]) -> bytes:
    """Return one byte per rollout: 1 if the column has one of the values, else 0."""
    if column.values is None:
        return bytes(value in values for value in column.codes)
    is_selected = bytes(value in values for value in column.values)
    return bytes(column.codes).translate(is_selected.ljust(256, b"\0"))  # a translation table has 256 bytes


def _both(left_mask: bytes, right_mask: bytes) -> bytes:
    """Return the mask of the rollouts that both masks select."""
    # As one large integer: a loop over 100,000 bytes takes thirty times as long.
    intersection = int.from_bytes(left_mask, "big") & int.from_bytes(right_mask, "big")
    return intersection.to_bytes(len(left_mask), "big")


def _largest(
    kind: str, chosen: Mapping[str, _Values], mask: bytes, lines: Sequence[int], fewest: int = 1
) -> Iterator[dict[str, object]]:
    """Yield the largest groups of selected rollouts, on these lines, whose values are equal; missing values form no group."""
    parts = [compress(column.codes, mask) for column in chosen.values()]
    is_single = len(parts) == 1  # then codes are counted without tuples, which takes less time
    keys = list(parts[0]) if is_single else list(zip(*parts))
    combinations: list[tuple[JsonValue, int, list[JsonValue]]] = []
    for key, count in Counter(keys).most_common():
        codes: Sequence[JsonValue] = [key] if is_single else key
        values = [column.value_of(code) for code, column in zip(codes, chosen.values(), strict=True)]
        if count >= fewest and None not in values:
            combinations.append((key, count, values))
        if count < fewest or len(combinations) == MAX_REASONS:
            break
    for key, count, values in combinations:
        pairs = list(zip(chosen, values, strict=True))
        parts_of_label = values
        if kind == "scores":
            parts_of_label = [f"{name.removeprefix(SCORE_PREFIX)} = {value:g}" for name, value in pairs]
        yield {
            "kind": kind,
            "label": ", ".join(parts_of_label),
            "count": count,
            "line": lines[keys.index(key)],
            "filter": [[f"is.{name}", str(value)] for name, value in pairs],
        }


def _lines(index: Index, mask: bytes) -> Sequence[int]:
    """Return the lines of the selected rollouts. Every readable line of the file is a rollout."""
    bad = {line for (line,) in index.query("SELECT line FROM bad")}
    lines: Iterable[int] = range(len(mask) + len(bad))
    if bad:  # without, a range is several times as fast as a generator
        lines = (line for line in lines if line not in bad)
    return list(compress(lines, mask))


def _pattern_scores(scores: Mapping[str, _Values], mask: bytes) -> dict[str, _Values]:
    """Return the first scores with few different values among some rollouts."""
    values = {}
    for name, column in scores.items():
        if column.values is None or len(values) == MAX_PATTERN_SCORES:
            continue
        counts = _CodedColumn(bytes(column.codes), list(column.values)).counts(mask)
        different = sum(value is not None and count > 0 for value, count in zip(column.values, counts, strict=True))
        if 1 <= different <= MAX_PATTERN_VALUES:
            values[name] = column
    return values
