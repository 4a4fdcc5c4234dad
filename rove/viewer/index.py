"""An index of a run's rollouts: where each line of rollouts.jsonl begins, and its scalars, in SQLite.

It is in the user's cache folder, never in the run folder, which may come from a stranger: a database found there is not
opened. Where the cache cannot be written, the index is in memory. Whenever an index does not fit the file it is rebuilt.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, BinaryIO, NamedTuple, TypeVar

from rove.core.errors import RunError
from rove.core.messages import text_of
from rove.runs.annotations import Annotations
from rove.runs.serialization import Listed, decode_listed
from rove.utils.files import open_regular, read_lines
from rove.viewer.html import excerpt, utf8_text
from rove.viewer.index_store import drop_indexes, remove_index, store_of
from rove.viewer.jsonl_tail import mark

T = TypeVar("T")

VERSION = 2
"""Of the tables; an index of another one is made anew."""
NAMES = 400
"""Reward functions and metrics that have a column; of further ones only the rollout itself tells."""
BATCH = 1000
"""Lines kept in memory before they are stored."""
REMEMBERED = 200
"""Answers kept; some have a byte for each rollout."""
ASKED = 160
"""Characters kept of what an example asks."""

FIXED = {
    "line": "INTEGER PRIMARY KEY",
    "offset": "INTEGER",
    "size": "INTEGER",
    "superseded": "INTEGER",
    "example_key": "TEXT",
    "example": "INTEGER",
    "rollout": "INTEGER",
    "step": "INTEGER",
    "env": "TEXT",
    "reward": "REAL",
    "error": "TEXT",
    "stop": "TEXT",
    "truncated": "INTEGER",
    "turns": "INTEGER",
    "prompt_tokens": "INTEGER",
    "completion_tokens": "INTEGER",
    "seconds": "REAL",
    "model_seconds": "REAL",
    "retries": "INTEGER",
    "temperature": "REAL",
}
"""Columns of every rollout. `line` counts from 0; `superseded` is 1 where a later line is of the same rollout."""

TABLES = f"""
CREATE TABLE rollouts ({", ".join(f"{name} {kind}" for name, kind in FIXED.items())});
CREATE TABLE asked (line INTEGER PRIMARY KEY, words TEXT);
CREATE TABLE bad (line INTEGER PRIMARY KEY, offset INTEGER, size INTEGER, why TEXT);
CREATE TABLE names (place INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE seen (bytes INTEGER, lines INTEGER, mark BLOB, inode TEXT, size INTEGER, changed INTEGER);
INSERT INTO seen VALUES (0, 0, x'', '', 0, 0);
CREATE TABLE source (file BLOB);
CREATE INDEX places ON rollouts (example_key, rollout, step);
CREATE INDEX rewards ON rollouts (reward) WHERE superseded = 0;
CREATE TRIGGER again BEFORE INSERT ON rollouts BEGIN
  UPDATE rollouts SET superseded = 1
  WHERE example_key = NEW.example_key AND rollout = NEW.rollout AND step IS NEW.step AND superseded = 0;
END;
PRAGMA user_version = {VERSION};
"""

SAID = """
PRAGMA temp_store = MEMORY;
CREATE TEMP TABLE tagged (line INTEGER, tag TEXT, PRIMARY KEY (line, tag)) WITHOUT ROWID;
CREATE TEMP TABLE noted (line INTEGER PRIMARY KEY, note TEXT);
"""
"""What people say of rollouts; not kept, it is in a file of its own already."""


class Progress(NamedTuple):
    """How much of the file has been read."""

    bytes: int
    """Of whole lines."""
    size: int
    """Bytes of the file; beyond `bytes`, once `done`, there is a line whose end has not been written."""
    done: bool
    bad: int
    """Lines that are no rollouts this rove can read."""
    stamp: tuple[int, int]
    """Differs where the contents do."""


class Index:
    """The index of one file; calls may come from any thread.

    Args:
        file: a run's rollouts.jsonl; it may not be there yet.
        folder: where the database is kept. Default: `index_folder()`.
    """

    def __init__(self, file: Path, folder: Path | None = None):
        self.file = file
        self.store = store_of(file, folder)
        self._database: sqlite3.Connection | None = None
        self._in_memory = self.store is None
        self._checked: tuple[int, ...] = ()
        self._born = 0
        self._remembered: dict[Hashable, Any] = {}
        self._stamp: tuple[Any, ...] = ()
        self.annotations = Annotations(file.parent)
        self._said: tuple[Any, ...] = ()
        self._lock = RLock()

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def catch_up(self, seconds: float = 0.2) -> Progress:
        """Read what is new, for about so long; call again until it is `done`."""
        with self._lock:
            try:
                return self._catch_up(time.monotonic() + seconds)
            except (sqlite3.Error, PermissionError):  # a full disk, a cache folder that cannot be written
                self.close()
                self._in_memory = True
                return self._catch_up(time.monotonic() + seconds)

    def ask(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query.

        Raises:
            RunError: the database cannot be read.
        """
        with self._lock:
            try:
                return self._connected().execute(sql, values).fetchall()
            except (sqlite3.Error, OverflowError) as error:
                self.close()
                raise RunError(
                    f"the index {self.store or 'in memory'} cannot be read ({error}); delete it, it is rebuilt"
                ) from error

    def columns(self) -> dict[str, str]:
        """Scores by name → their columns in the table `rollouts`."""
        return {name: f"v{place}" for place, name in self.ask("SELECT place, name FROM names ORDER BY place")}

    def remember(self, name: Hashable, find: Callable[[], T]) -> T:
        """What `find` returns, found once for what has been read and annotated; nobody may change it."""
        with self._lock:
            [stamp] = self.ask("SELECT bytes, lines, ? FROM seen", [str(self._said)])
            if stamp != self._stamp or len(self._remembered) >= REMEMBERED:
                self._remembered, self._stamp = {}, stamp
            if name not in self._remembered:
                self._remembered[name] = find()
            return self._remembered[name]

    # the database

    def _connected(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = self._connect()
            self._checked = ()
        return self._database

    def _connect(self) -> sqlite3.Connection:
        where = ":memory:" if self.store is None or self._in_memory else str(self.store)
        is_new = where != ":memory:" and not os.path.exists(where)
        database = sqlite3.connect(where, timeout=5.0, isolation_level=None, check_same_thread=False)
        try:
            database.executescript(f"PRAGMA synchronous = OFF; PRAGMA trusted_schema = OFF; {SAID}")
            self._said = ()
            if database.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                self._empty(database)
        except sqlite3.DatabaseError as error:
            database.close()
            if self.store is None or self._in_memory or isinstance(error, sqlite3.OperationalError):
                raise
            remove_index(self.store)  # no database at all, or a broken one
            return self._connect()
        self._born = self._inode()
        if self.store is not None and self._born:
            os.utime(self.store)  # the indexes that were not used for longest are dropped first
            if is_new:
                drop_indexes(self.store.parent, keep=self.store)
        return database

    def _inode(self) -> int:
        try:
            return 0 if self.store is None or self._in_memory else self.store.stat().st_ino
        except FileNotFoundError:
            return 0

    def _empty(self, database: sqlite3.Connection) -> None:
        found = database.execute("SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
        drops = [f'DROP {kind} "{name}";' for kind, name in found if '"' not in name]
        database.executescript("\n".join(["BEGIN IMMEDIATE;", *drops, TABLES, "COMMIT;"]))
        database.execute("INSERT INTO source VALUES (?)", (os.fsencode(self.file.absolute()),))
        self._said = ()

    # reading

    def _catch_up(self, deadline: float) -> Progress:
        self.annotations.catch_up()
        if not self._in_memory and self._database is not None and self._inode() != self._born:
            self.close()  # another process has dropped it
        if self._database is None and not os.path.lexists(self.file):
            return Progress(0, 0, True, 0, (0, 0))
        database = self._connected()
        with open_regular(self.file) if os.path.lexists(self.file) else open(os.devnull, "rb") as lines:
            found = os.fstat(lines.fileno())
            now = (found.st_ino, found.st_size, found.st_mtime_ns)
            done = now == self._checked
            if not done:
                database.execute("BEGIN IMMEDIATE")
                try:
                    if not self._is_same(database, lines, found):
                        database.execute("ROLLBACK")
                        self._empty(database)
                        database.execute("BEGIN IMMEDIATE")
                    done = self._read(database, lines, found, deadline)
                finally:
                    if database.in_transaction:
                        database.execute("COMMIT")
                self._checked = now if done else ()
        [(read, count)] = database.execute("SELECT bytes, lines FROM seen").fetchall()
        [(bad,)] = database.execute("SELECT COUNT(*) FROM bad").fetchall()
        self._keep_said(database, read)
        return Progress(read, found.st_size, done, bad, (read, count))

    def _keep_said(self, database: sqlite3.Connection, read: int) -> None:
        """Find the lines of the rollouts that have tags or notes."""
        now = (self.annotations.stamp, read if self.annotations.rollouts else 0)
        if now == self._said:
            return
        database.executescript("BEGIN; DELETE FROM tagged; DELETE FROM noted;")
        lines = "SELECT line, ? FROM rollouts INDEXED BY places WHERE example_key = ? AND rollout = ? AND step IS ?"
        for (step, key, rollout), said in self.annotations.rollouts.items():
            where = (utf8_text(key), rollout, step)
            for tag in said.tags:
                database.execute(f"INSERT OR IGNORE INTO tagged {lines}", (tag, *where))
            if said.note:
                database.execute(f"INSERT OR IGNORE INTO noted {lines}", (utf8_text(said.note), *where))
        database.execute("COMMIT")
        self._said = now

    def _is_same(self, database: sqlite3.Connection, lines: BinaryIO, found: os.stat_result) -> bool:
        """Whether the file begins with what was indexed: it is unchanged, or longer, and has the same bytes at both ends.

        Resumed training cuts the file and writes on; another run may have taken its place.
        """
        [(read, known, *then)] = database.execute("SELECT bytes, mark, inode, size, changed FROM seen").fetchall()
        now = [_inode_of(found), found.st_size, found.st_mtime_ns]
        grown = then[0] == now[0] and found.st_size > then[1]
        return read == 0 or ((grown or then == now) and mark(lines, read) == known)

    def _read(self, database: sqlite3.Connection, lines: BinaryIO, found: os.stat_result, deadline: float) -> bool:
        [(read, number)] = database.execute("SELECT bytes, lines FROM seen").fetchall()
        batch = _Batch(database)
        lines.seek(read)
        done = True
        for line in read_lines(lines):
            if not line.endswith(b"\n"):
                break
            batch.add(number, read, line)
            number, read = number + 1, read + len(line)
            if number % 64 == 0 and time.monotonic() > deadline:
                done = False
                break
        batch.store()
        now = (read, number, mark(lines, read), _inode_of(found), found.st_size, found.st_mtime_ns)
        database.execute("UPDATE seen SET bytes = ?, lines = ?, mark = ?, inode = ?, size = ?, changed = ?", now)
        return done


def _inode_of(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}"


class _Batch:
    """Lines on their way into the database."""

    def __init__(self, database: sqlite3.Connection):
        self.database = database
        self.places = {name: place for place, name in database.execute("SELECT place, name FROM names")}
        self.rows: list[list[Any]] = []
        self.asked: list[tuple[int, str]] = []
        self.bad: list[tuple[int, int, int, str]] = []

    def add(self, number: int, offset: int, line: bytes) -> None:
        try:
            listed = decode_listed(line[:-1])
            row = [number, offset, len(line), 0, *_scalars(listed)]
        except (RunError, ValueError, RecursionError) as error:
            self.bad.append((number, offset, len(line), utf8_text(str(error))))
            return
        scores = listed.scores
        values = scores.rewards | scores.metrics | scores.rewards if scores else {}
        self._add_names([name for name in values if name not in self.places])
        self.rows.append(row + [values.get(name) for name in self.places])
        self.asked.append((number, _asked(listed)))
        if len(self.rows) >= BATCH:
            self.store()

    def _add_names(self, names: Sequence[str]) -> None:
        for name in names[: NAMES - len(self.places)]:
            self.store()
            place = len(self.places)
            self.places[name] = place
            self.database.execute("INSERT INTO names VALUES (?, ?)", (place, utf8_text(name)))
            self.database.execute(f"ALTER TABLE rollouts ADD COLUMN v{place} REAL")

    def store(self) -> None:
        if self.rows:
            marks = ", ".join("?" * len(self.rows[0]))
            self.database.executemany(f"INSERT INTO rollouts VALUES ({marks})", self.rows)
        self.database.executemany("INSERT INTO asked VALUES (?, ?)", self.asked)
        self.database.executemany("INSERT INTO bad VALUES (?, ?, ?, ?)", self.bad)
        self.rows, self.asked, self.bad = [], [], []


def _scalars(listed: Listed) -> Iterator[Any]:
    """The values of FIXED after the first four.

    Raises:
        ValueError: a number is larger than anything that is counted.
    """
    for number in (listed.example_id, listed.rollout_index, listed.step or 0, *_tokens(listed)):
        if abs(number) >= 1 << 53:
            raise ValueError(f"not a rollout record: {number} is too large to be a count")
    error = listed.error
    yield from (
        utf8_text(listed.example_key),
        listed.example_id,
        listed.rollout_index,
        listed.step,
        utf8_text(listed.env_id),
    )
    yield listed.reward
    yield None if error is None else utf8_text(f"{error.phase}: {error.type}")
    yield None if listed.stop_condition is None else utf8_text(listed.stop_condition)
    yield from (int(listed.is_truncated), len(listed.turn_seconds), *_tokens(listed))
    yield from (listed.timing.total, listed.timing.model, listed.retries, listed.temperature)


def _tokens(listed: Listed) -> tuple[int, int]:
    return listed.usage.prompt_tokens, listed.usage.completion_tokens


def _asked(listed: Listed) -> str:
    """What the example asks: its last message."""
    try:
        return utf8_text(excerpt(text_of(listed.prompt[-1]), ASKED)) if listed.prompt else ""
    except (AttributeError, TypeError):  # a content that is neither text nor parts
        return ""
