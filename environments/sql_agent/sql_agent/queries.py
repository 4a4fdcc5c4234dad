"""Queries of somebody who is not trusted: they read, they end soon, and what they return is compared as rows."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
FORBIDDEN = {"load_extension", "fts3_tokenizer", "random", "randomblob"}
"""Functions that reach outside, or do not return the same when an answer is scored."""
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 2_000,  # characters of a value, bytes of a row
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
MAX_STEPS = 2_000_000
"""Instructions of SQLite's machine that a query may take, some tenths of a second."""
MAX_SECONDS = 1.0
"""Of CPU, for the few queries whose single instructions take long or whose sorting goes to disk."""
CHECKED_EVERY = 1000
HINTS = {
    "interrupted": "the query takes too long",
    "not authorized": "the database can only be read",
    "authorization denied": "the database can only be read",
}
"""What SQLite's words mean here."""
SHOWN_ROWS, SHOWN_CELL = 30, 100
TOLERANCE = 0.0051
"""Between numbers that count as equal: one of them may be rounded to two decimals."""

Row = Sequence[Any]


def connect(image: bytes) -> sqlite3.Connection:
    """A copy in memory of the database, which can be read only."""
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.deserialize(image)
    db.text_factory = lambda raw: raw.decode(errors="replace")
    for limit, most in LIMITS.items():
        db.setlimit(limit, most)
    db.execute("PRAGMA query_only = ON")
    db.set_authorizer(_authorize)
    return db


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    allowed = action in READS or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in FORBIDDEN)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def run(db: sqlite3.Connection, sql: str, most: int) -> tuple[list[str], list[Row]]:
    """Names of the columns and the first rows, at most one more than `most`.

    Raises:
        ValueError: what is wrong with the query, in SQLite's words.
    """
    steps, end = 0, time.thread_time() + MAX_SECONDS

    def stop() -> bool:
        nonlocal steps
        steps += CHECKED_EVERY
        return steps > MAX_STEPS or time.thread_time() > end

    db.set_progress_handler(stop, CHECKED_EVERY)
    try:
        cursor = db.execute(sql)
        if cursor.description is None:
            raise ValueError("there is no query; expected one SELECT")
        return [column[0] for column in cursor.description], cursor.fetchmany(most + 1)
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise ValueError(f"{error}: {HINTS[str(error)]}" if str(error) in HINTS else str(error)) from error


def as_text(value: Any) -> str:
    """A value as it is shown: NULL, 12.5, x'00ff'."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def as_table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """What a query returned as a table for the model, cut where it is long."""
    lines = [" | ".join(as_text(cell)[:SHOWN_CELL] for cell in row) for row in rows[:SHOWN_ROWS]]
    if not rows:
        lines = ["(no rows)"]
    if len(rows) > SHOWN_ROWS:
        lines.append(f"(only the first {SHOWN_ROWS} rows are shown)")
    return "\n".join([" | ".join(column[:SHOWN_CELL] for column in columns), *lines])


def in_lines(rows: Sequence[Row]) -> str:
    """Rows as an answer is written: a line for each, "|" between columns."""
    return "\n".join(" | ".join(map(as_text, row)) for row in rows)


def from_lines(text: str) -> list[Row]:
    """The rows of an answer."""
    lines = [line.strip().strip("|") for line in text.strip().splitlines() if line.strip()]
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def same(rows: Sequence[Row], others: Sequence[Row], ordered: bool) -> bool:
    """Whether rows are equal: texts but for case, numbers within `TOLERANCE`, in any order unless it is asked for."""
    mine, theirs = ([[_cell(cell) for cell in row] for row in some] for some in (rows, others))
    if len(mine) != len(theirs):
        return False
    return all(map(_equal_rows, mine, theirs)) if ordered else _can_be_paired(mine, theirs)


Cells = list[str | float]


def _can_be_paired(mine: list[Cells], theirs: list[Cells]) -> bool:
    """Whether each row has an equal one of its own; by augmenting paths, as equality within a tolerance is no order."""
    owner: dict[int, int] = {}

    def seated(row: int, tried: set[int]) -> bool:
        for seat, other in enumerate(theirs):
            if seat not in tried and _equal_rows(mine[row], other):
                tried.add(seat)
                if seat not in owner or seated(owner[seat], tried):
                    owner[seat] = row
                    return True
        return False

    return all(seated(row, set()) for row in range(len(mine)))


def _equal_rows(row: Cells, other: Cells) -> bool:
    return len(row) == len(other) and all(map(_equal, row, other))


def _equal(one: str | float, other: str | float) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= TOLERANCE
    return one == other


def _cell(value: Any) -> str | float:
    text = as_text(value).strip()
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return text.casefold()
    return number if math.isfinite(number) else text.casefold()
