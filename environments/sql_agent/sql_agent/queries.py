"""Run untrusted queries, read-only and with limits, and compare their results as rows."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

READ_ACTIONS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
FORBIDDEN_FUNCTIONS = {"load_extension", "fts3_tokenizer", "random", "randomblob"}
"""Functions that access more than the database, or whose result would differ when the answer is scored."""
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 2_000,  # characters of a value, bytes of a row
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
MAX_STEPS = 2_000_000
"""Maximum number of SQLite virtual machine instructions per query; they take some tenths of a second."""
MAX_SECONDS = 1.0
"""Maximum CPU time per query; it stops queries with slow single instructions or with sorting on disk."""
CHECK_INTERVAL_STEPS = 1000
HINTS = {
    "interrupted": "the query takes too long",
    "not authorized": "the database can only be read",
    "authorization denied": "the database can only be read",
}
"""Explanations of SQLite's error messages."""
SHOWN_ROWS, SHOWN_CELL_CHARS = 30, 100
"""Maximum rows of a result, and characters of a cell, that the model sees."""
TOLERANCE = 0.0051
"""Maximum difference between numbers that count as equal; one of them may be rounded to two decimals."""

Row = Sequence[Any]


def connect(image: bytes) -> sqlite3.Connection:
    """Return a connection to a read-only copy of the database in memory."""
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.deserialize(image)
    db.text_factory = lambda raw: raw.decode(errors="replace")
    for limit, maximum in LIMITS.items():
        db.setlimit(limit, maximum)
    db.execute("PRAGMA query_only = ON")
    db.set_authorizer(_authorize)
    return db


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    allowed = action in READ_ACTIONS or (
        action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in FORBIDDEN_FUNCTIONS
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def run(db: sqlite3.Connection, sql: str, max_rows: int) -> tuple[list[str], list[Row]]:
    """Run a query and return the column names and the first rows, at most one more than `max_rows`.

    Raises:
        ValueError: The query failed; the message is SQLite's.
    """
    steps, end = 0, time.thread_time() + MAX_SECONDS

    def stop() -> bool:
        nonlocal steps
        steps += CHECK_INTERVAL_STEPS
        return steps > MAX_STEPS or time.thread_time() > end

    db.set_progress_handler(stop, CHECK_INTERVAL_STEPS)
    try:
        cursor = db.execute(sql)
        if cursor.description is None:
            raise ValueError("there is no query; expected one SELECT")
        return [column[0] for column in cursor.description], cursor.fetchmany(max_rows + 1)
    except (sqlite3.Error, sqlite3.Warning) as error:
        message = str(error)
        if message in HINTS:
            message = f"{message}: {HINTS[message]}"
        raise ValueError(message) from error


def as_text(value: Any) -> str:
    """Return a value as the model sees it: NULL, 12.5, x'00ff'."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def as_table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return the result of a query as a table for the model; truncate long results and cells."""
    lines = [" | ".join(as_text(cell)[:SHOWN_CELL_CHARS] for cell in row) for row in rows[:SHOWN_ROWS]]
    if not rows:
        lines = ["(no rows)"]
    if len(rows) > SHOWN_ROWS:
        lines.append(f"(only the first {SHOWN_ROWS} rows are shown)")
    return "\n".join([" | ".join(column[:SHOWN_CELL_CHARS] for column in columns), *lines])


def in_lines(rows: Sequence[Row]) -> str:
    """Return rows in the format of an answer: one line per row, "|" between the columns."""
    return "\n".join(" | ".join(map(as_text, row)) for row in rows)


def from_lines(text: str) -> list[Row]:
    """Return the rows of an answer in the format of `in_lines`."""
    lines = [line.strip().strip("|") for line in text.strip().splitlines() if line.strip()]
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def same(rows: Sequence[Row], expected: Sequence[Row], ordered: bool) -> bool:
    """Return whether two results are equal, ignoring case, differences within `TOLERANCE`, and order unless `ordered`."""
    actual_cells, expected_cells = ([[_cell(cell) for cell in row] for row in result] for result in (rows, expected))
    if len(actual_cells) != len(expected_cells):
        return False
    return (
        all(map(_equal_rows, actual_cells, expected_cells))
        if ordered
        else _can_be_matched(actual_cells, expected_cells)
    )


Cells = list[str | float]


def _can_be_matched(actual: list[Cells], expected: list[Cells]) -> bool:
    """Return whether the rows can be matched one to one.

    This is a bipartite matching by augmenting paths. Sorting is not enough, because equality within a tolerance is not
    transitive.
    """
    matched: dict[int, int] = {}

    def augment(row: int, visited: set[int]) -> bool:
        for candidate, expected_row in enumerate(expected):
            if candidate not in visited and _equal_rows(actual[row], expected_row):
                visited.add(candidate)
                if candidate not in matched or augment(matched[candidate], visited):
                    matched[candidate] = row
                    return True
        return False

    return all(augment(row, set()) for row in range(len(actual)))


def _equal_rows(row: Cells, expected: Cells) -> bool:
    return len(row) == len(expected) and all(map(_equal, row, expected))


def _equal(actual: str | float, expected: str | float) -> bool:
    if isinstance(actual, float) and isinstance(expected, float):
        return abs(actual - expected) <= TOLERANCE
    return actual == expected


def _cell(value: Any) -> str | float:
    text = as_text(value).strip()
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return text.casefold()
    return number if math.isfinite(number) else text.casefold()
