"""An index of a run's rollouts in SQLite: the offset of each line of rollouts.jsonl, and its scalar values.

The index is in the user's cache folder. A database in the run folder is never opened, because the folder may come from an
untrusted source. If the cache is not writable, the index is in memory. An index that does not match its file is rebuilt.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from threading import Lock, RLock
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec

from rove.core.errors import RunError
from rove.core.findings import Finding
from rove.core.messages import text_of
from rove.core.plain import JsonObject, JsonValue
from rove.runs.annotations import Annotations
from rove.runs.schema import decoded_row
from rove.runs.serialization import RolloutListing, decode_listing
from rove.statistics.format import excerpt
from rove.utils.files import cache_folder, open_regular, read_lines
from rove.viewer.html import utf8_text

FINGERPRINT_BYTES = 4096
"""Number of bytes at the start and at the end of the read part of the file by which this part is identified."""


def prefix_fingerprint(file: BinaryIO, end: int) -> bytes:
    """Return a fingerprint of the first `end` bytes; it changes if resumed training has cut and rewritten the file."""
    file.seek(0)
    head = file.read(min(end, FINGERPRINT_BYTES))
    file.seek(max(0, end - FINGERPRINT_BYTES))
    return hashlib.blake2b(head + file.read(min(end, FINGERPRINT_BYTES)), digest_size=16).digest()


class JsonlTail:
    """The rows of a small file of JSON lines, up to the last complete line."""

    def __init__(self, file: Path):
        self.file = file
        self.rows: list[JsonObject] = []
        self.bad = 0
        """Number of unreadable lines."""
        self.life = 0
        """Number of times that the file was cut or replaced."""
        self._end = 0
        self._fingerprint = b""
        self._seen: tuple[int, ...] = ()
        self._lock = Lock()

    def catch_up(self) -> None:
        """Read new lines; an incomplete last line is left for the next call."""
        with self._lock:
            try:
                with open_regular(self.file) as lines:
                    stat = os.fstat(lines.fileno())
                    stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
                    if stamp != self._seen:
                        self._read(lines)
                        self._seen = stamp
            except FileNotFoundError:
                self._start_over()

    def _read(self, lines: BinaryIO) -> None:
        if prefix_fingerprint(lines, self._end) != self._fingerprint:
            self._start_over()
        lines.seek(self._end)
        for line in read_lines(lines):
            if not line.endswith(b"\n"):
                break
            self._end += len(line)
            try:
                self.rows.append(decoded_row(line))
            except RunError:
                self.bad += 1
        self._fingerprint = prefix_fingerprint(lines, self._end)

    def _start_over(self) -> None:
        self.life += bool(self._end)
        self.rows, self.bad, self._end, self._seen = [], 0, 0, ()


def alert_rows(folder: Path) -> tuple[list[JsonObject], int]:
    """Return the alerts of a run, each with a readable text (`line`), and the number of damaged lines."""
    lines = JsonlTail(folder / "alerts.jsonl")
    lines.catch_up()
    return [{**row, "line": _alert_line(row)} for row in lines.rows], lines.bad


def _alert_line(row: Mapping[str, object]) -> str:
    with suppress(msgspec.ValidationError, KeyError):  # a user has edited the file
        return str(msgspec.convert(row, Finding))
    return str(row.get("text", ""))


T = TypeVar("T")

TABLES_VERSION = 6
"""Version of the tables; an index of another version is rebuilt."""
MAX_SCORE_COLUMNS = 400
"""Maximum number of reward functions and metrics with a column; further functions are only in the rollouts."""
MAX_INFO_FIELDS = 40
"""Maximum number of fields of the rows' `info` by which rollouts can be filtered."""
MAX_INFO_BYTES = 100_000
"""Maximum size of an `info` whose fields are stored; a larger one contains documents, and reading it takes long."""
MAX_INFO_CHARS = 160
"""Maximum length of a text in `info` that is stored."""
BATCH_LINES = 1000
"""Maximum number of lines per insertion."""
MAX_CACHED_RESULTS = 200
"""Maximum number of cached results; some results take a byte per rollout."""
MAX_QUESTION_CHARS = 160
"""Maximum characters stored of an example's prompt, of its expected answer, and of the model's answer."""
FINAL_TAG = re.compile(r"<(\w{1,40})>([^<]*)</\1>\s*$")

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
"""Columns of every rollout. `line` counts from 0; `superseded` is 1 if a later line repeats the rollout."""

TABLES = f"""
CREATE TABLE rollouts ({", ".join(f"{name} {kind}" for name, kind in FIXED.items())});
CREATE TABLE questions (line INTEGER PRIMARY KEY, text TEXT, answer TEXT, reply TEXT, info TEXT);
CREATE TABLE bad (line INTEGER PRIMARY KEY, offset INTEGER, size INTEGER, why TEXT);
CREATE TABLE names (place INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE info_fields (place INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE seen (bytes INTEGER, lines INTEGER, mark BLOB, inode TEXT, size INTEGER, changed INTEGER);
INSERT INTO seen VALUES (0, 0, x'', '', 0, 0);
CREATE TABLE source (file BLOB);
CREATE INDEX places ON rollouts (example_key, rollout, step);
CREATE INDEX rewards ON rollouts (reward) WHERE superseded = 0;
CREATE TRIGGER again BEFORE INSERT ON rollouts BEGIN
  UPDATE rollouts SET superseded = 1
  WHERE example_key = NEW.example_key AND rollout = NEW.rollout AND step IS NEW.step AND superseded = 0;
END;
PRAGMA user_version = {TABLES_VERSION};
"""

ANNOTATION_TABLES = """
PRAGMA temp_store = MEMORY;
CREATE TEMP TABLE tagged (line INTEGER, tag TEXT, PRIMARY KEY (line, tag)) WITHOUT ROWID;
CREATE TEMP TABLE noted (line INTEGER PRIMARY KEY, note TEXT);
"""
"""Tags and notes. The tables are temporary, because a file in the run folder stores them."""


class Progress(NamedTuple):
    """The progress of reading a file."""

    bytes: int
    """Number of bytes in the lines that were read."""
    size: int
    """Size of the file in bytes. If it exceeds `bytes` when `done` is true, the last line is incomplete."""
    done: bool
    bad: int
    """Number of lines that this version cannot read as rollouts."""
    stamp: tuple[int, int]
    """A value that changes when the file's contents change."""


class Index:
    """The index of one file; its methods are thread-safe.

    Args:
        file: A run's rollouts.jsonl; may not exist yet.
        folder: Folder of the database. Default: `index_folder()`.
    """

    def __init__(self, file: Path, folder: Path | None = None):
        self.file = file
        self.store = store_of(file, folder)
        self._database: sqlite3.Connection | None = None
        self._in_memory = self.store is None
        self._checked: tuple[int, ...] = ()
        self._unreadable: tuple[tuple[int, ...], str] = ((), "")
        """State of a file that cannot be read, and the reason; it prevents that gigabytes are read again for every request,
        which would block the viewer."""
        self._born = 0
        self._cache: dict[Hashable, JsonValue] = {}
        self._stamp: tuple[JsonValue, ...] = ()
        self.annotations = Annotations(file.parent)
        self.pass_threshold = 1.0
        """Minimum reward of a rollout that counts as passed."""
        self._annotated: tuple[JsonValue, ...] = ()
        self._lock = RLock()

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def release(self) -> None:
        """Close the database until it is needed again, unless it is in memory and would be lost."""
        if self.store is not None and not self._in_memory:
            self.close()

    def catch_up(self, seconds: float = 0.2) -> Progress:
        """Read new lines for about `seconds`; call it again until the progress is `done`."""
        with self._lock:
            try:
                return self._catch_up(time.monotonic() + seconds)
            except (sqlite3.Error, PermissionError):  # a full disk, a cache folder that cannot be written
                self.close()
                self._in_memory = True
                return self._catch_up(time.monotonic() + seconds)

    def query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[JsonValue, ...]]:
        """Return the rows of an SQL query."""
        with self._lock:
            try:
                return self._connected().execute(sql, values).fetchall()
            except (sqlite3.Error, OverflowError) as error:
                self.close()
                raise RunError(
                    f"the index {self.store or 'in memory'} cannot be read ({error}); delete it, rove rebuilds it"
                ) from error

    def columns(self) -> dict[str, str]:
        """Return name of a score → its column in the table `rollouts`."""
        return {name: f"v{number}" for number, name in self.query("SELECT place, name FROM names ORDER BY place")}

    def info_fields(self) -> list[str]:
        """Return the names of the fields of the rows' `info`; `questions.info` has their values as a JSON list in this order."""
        return [str(name) for (name,) in self.query("SELECT name FROM info_fields ORDER BY place")]

    def cached(self, name: Hashable, find: Callable[[], T]) -> T:
        """Return the result of `find`, cached until lines or annotations change; callers must not modify it.

        Beyond `MAX_CACHED_RESULTS`, the least recently used results are dropped.
        """
        with self._lock:
            settings = str((self._annotated, self.pass_threshold))
            [stamp] = self.query("SELECT bytes, lines, mark, ? FROM seen", [settings])
            if stamp != self._stamp:
                self._cache, self._stamp = {}, stamp
            result = self._cache.pop(name) if name in self._cache else find()
            self._cache[name] = result  # now the last one
            while len(self._cache) > MAX_CACHED_RESULTS:
                del self._cache[next(iter(self._cache))]
            return result

    def _connected(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = self._connect()
            self._checked = ()
        return self._database

    def _connect(self) -> sqlite3.Connection:
        address = ":memory:" if self.store is None or self._in_memory else str(self.store)
        is_new = address != ":memory:" and not os.path.exists(address)
        database = sqlite3.connect(address, timeout=5.0, isolation_level=None, check_same_thread=False)
        try:
            # Without waiting for the disk: an index that is lost is built again (docs/decisions/viewer.md).
            database.executescript(f"PRAGMA synchronous = OFF; PRAGMA trusted_schema = OFF; {ANNOTATION_TABLES}")
            self._annotated = ()
            if database.execute("PRAGMA user_version").fetchone()[0] != TABLES_VERSION:
                self._empty(database)
        except sqlite3.DatabaseError as error:
            database.close()
            if self.store is None or self._in_memory or isinstance(error, sqlite3.OperationalError):
                raise
            remove_index(self.store)  # not a database, or a damaged one
            return self._connect()
        self._born = self._inode()
        if self.store is not None and self._born:
            os.utime(self.store)  # `drop_indexes` starts with the least recently used
            if is_new:
                drop_indexes(self.store.parent, keep=self.store)
        return database

    def _inode(self) -> int:
        try:
            return 0 if self.store is None or self._in_memory else self.store.stat().st_ino
        except FileNotFoundError:
            return 0

    def _empty(self, database: sqlite3.Connection) -> None:
        objects = database.execute("SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
        drops = [f'DROP {kind} "{name}";' for kind, name in objects if '"' not in name]
        database.executescript("\n".join(["BEGIN IMMEDIATE;", *drops, TABLES, "COMMIT;"]))
        database.execute("INSERT INTO source VALUES (?)", (os.fsencode(self.file.absolute()),))
        self._annotated = ()

    def _catch_up(self, deadline: float) -> Progress:
        self.annotations.reload()
        if not self._in_memory and self._database is not None and self._inode() != self._born:
            self.close()  # another process has deleted it
        if self._database is None and not os.path.lexists(self.file):
            return Progress(0, 0, True, 0, (0, 0))
        database = self._connected()
        with open_regular(self.file) if os.path.lexists(self.file) else open(os.devnull, "rb") as lines:
            stat = os.fstat(lines.fileno())
            stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            done = stamp == self._checked
            if stamp == self._unreadable[0]:
                raise RunError(self._unreadable[1])
            if not done:
                database.execute("BEGIN IMMEDIATE")
                try:
                    if not self._is_same(database, lines, stat):
                        database.execute("ROLLBACK")
                        self._empty(database)
                        database.execute("BEGIN IMMEDIATE")
                    done = self._read(database, lines, stat, deadline)
                except RunError as error:
                    self._unreadable = stamp, str(error)
                    raise
                finally:
                    if database.in_transaction:
                        database.execute("COMMIT")
                self._checked = stamp if done else ()
        [(read, count)] = database.execute("SELECT bytes, lines FROM seen").fetchall()
        [(bad,)] = database.execute("SELECT COUNT(*) FROM bad").fetchall()
        self._store_annotations(database, read)
        return Progress(read, stat.st_size, done, bad, (read, count))

    def _store_annotations(self, database: sqlite3.Connection, read: int) -> None:
        """Store the lines of rollouts that have tags or notes."""
        stamp = (self.annotations.stamp, read if self.annotations.rollouts else 0)
        if stamp == self._annotated:
            return
        database.executescript("BEGIN; DELETE FROM tagged; DELETE FROM noted;")
        lines = "SELECT line, ? FROM rollouts INDEXED BY places WHERE example_key = ? AND rollout = ? AND step IS ?"
        for (step, key, rollout), annotation in self.annotations.rollouts.items():
            identity = (utf8_text(key), rollout, step)
            for tag in annotation.tags:
                database.execute(f"INSERT OR IGNORE INTO tagged {lines}", (tag, *identity))
            if annotation.note:
                database.execute(f"INSERT OR IGNORE INTO noted {lines}", (utf8_text(annotation.note), *identity))
        database.execute("COMMIT")
        self._annotated = stamp

    def _is_same(self, database: sqlite3.Connection, lines: BinaryIO, stat: os.stat_result) -> bool:
        """Return whether the file still starts with the indexed bytes: it is unchanged, or it is longer but has the same
        fingerprint.

        Resumed training cuts and extends the file; another run may have replaced it.
        """
        [(read, mark, *recorded)] = database.execute("SELECT bytes, mark, inode, size, changed FROM seen").fetchall()
        # 4 kB at both ends identify a file, since no two lines have the same timestamps (docs/decisions/viewer.md).
        current = [_inode_of(stat), stat.st_size, stat.st_mtime_ns]
        grown = recorded[0] == current[0] and stat.st_size > recorded[1]
        return read == 0 or ((grown or recorded == current) and prefix_fingerprint(lines, read) == mark)

    def _read(self, database: sqlite3.Connection, lines: BinaryIO, stat: os.stat_result, deadline: float) -> bool:
        """Index the complete new lines of a file until the deadline; return whether none remain."""
        [(offset, line_number)] = database.execute("SELECT bytes, lines FROM seen").fetchall()
        batch = _Batch(database)
        lines.seek(offset)
        is_complete = True
        for line in read_lines(lines):
            if not line.endswith(b"\n"):  # it is still being written
                break
            batch.add(line_number, offset, line)
            line_number += 1
            offset += len(line)
            if line_number % 64 == 0 and time.monotonic() > deadline:
                is_complete = False
                break
        batch.store()
        fingerprint = prefix_fingerprint(lines, offset)
        state = (offset, line_number, fingerprint, _inode_of(stat), stat.st_size, stat.st_mtime_ns)
        database.execute("UPDATE seen SET bytes = ?, lines = ?, mark = ?, inode = ?, size = ?, changed = ?", state)
        return is_complete


def _inode_of(stat: os.stat_result) -> str:
    return f"{stat.st_dev}:{stat.st_ino}"


class _Batch:
    """Lines to insert into the database."""

    def __init__(self, database: sqlite3.Connection):
        self.database = database
        self.places = {name: number for number, name in database.execute("SELECT place, name FROM names")}
        self.info_places = {name: number for number, name in database.execute("SELECT place, name FROM info_fields")}
        self.rows: list[list[JsonValue]] = []
        self.questions: list[tuple[int, str, str | None, str | None, str | None]] = []
        self.bad: list[tuple[int, int, int, str]] = []

    def add(self, number: int, offset: int, line: bytes) -> None:
        try:
            listed = decode_listing(line[:-1])
            row = [number, offset, len(line), 0, *_scalars(listed)]
            info = _info_values(listed)
        except (RunError, ValueError, RecursionError) as error:
            self.bad.append((number, offset, len(line), utf8_text(str(error))))
            return
        scores = listed.scores
        # Rewards come first, and win over metrics of the same name.
        values = scores.rewards | scores.metrics | scores.rewards if scores else {}
        self._add_names([name for name in values if name not in self.places])
        self.rows.append(row + [values.get(name) for name in self.places])
        self.questions.append((number, _question(listed), _answer(listed), _reply(listed), self._encoded_info(info)))
        if len(self.rows) >= BATCH_LINES:
            self.store()

    def _encoded_info(self, fields: Mapping[str, str | float]) -> str | None:
        """Return the fields of a row's `info` as a JSON list in the order of `info_fields`; None without fields."""
        for name in [name for name in fields if name not in self.info_places]:
            if len(self.info_places) < MAX_INFO_FIELDS:
                self.database.execute("INSERT INTO info_fields VALUES (?, ?)", (len(self.info_places), name))
                self.info_places[name] = len(self.info_places)
        return msgspec.json.encode([fields.get(name) for name in self.info_places]).decode() if fields else None

    def _add_names(self, names: Sequence[str]) -> None:
        for name in names[: MAX_SCORE_COLUMNS - len(self.places)]:
            self.store()
            number = len(self.places)
            self.places[name] = number
            self.database.execute("INSERT INTO names VALUES (?, ?)", (number, utf8_text(name)))
            self.database.execute(f"ALTER TABLE rollouts ADD COLUMN v{number} REAL")

    def store(self) -> None:
        if self.rows:
            marks = ", ".join("?" * len(self.rows[0]))
            self.database.executemany(f"INSERT INTO rollouts VALUES ({marks})", self.rows)
        self.database.executemany("INSERT INTO questions VALUES (?, ?, ?, ?, ?)", self.questions)
        self.database.executemany("INSERT INTO bad VALUES (?, ?, ?, ?)", self.bad)
        self.rows, self.questions, self.bad = [], [], []


def _scalars(listed: RolloutListing) -> Iterator[object]:
    """Yield the values of the columns in `FIXED`, except the first four."""
    for number in (listed.example_id, listed.rollout_index, listed.step or 0, *_tokens(listed)):
        if abs(number) >= 1 << 53:  # the browser could not show it exactly
            raise ValueError(f"not a rollout record: {number} is too large for a count")
    error = listed.error
    yield utf8_text(listed.example_key)
    yield from (listed.example_id, listed.rollout_index, listed.step)
    yield utf8_text(listed.env_id)
    yield listed.reward
    yield None if error is None else utf8_text(f"{error.phase}: {error.type}")
    yield None if listed.stop_condition is None else utf8_text(listed.stop_condition)
    yield from (int(listed.is_truncated), len(listed.turn_seconds), *_tokens(listed))
    yield from (listed.timing.total, listed.timing.model, listed.retries, listed.temperature)


def _tokens(listed: RolloutListing) -> tuple[int, int]:
    return listed.usage.prompt_tokens, listed.usage.completion_tokens


def _question(listed: RolloutListing) -> str:
    """Return the last message of the prompt, shortened."""
    try:
        return utf8_text(excerpt(text_of(listed.prompt[-1]), MAX_QUESTION_CHARS)) if listed.prompt else ""
    except (AttributeError, TypeError):  # a content that is neither text nor a list of parts
        return ""


def _answer(listed: RolloutListing) -> str | None:
    """Return the expected answer, shortened; None if there is none."""
    return utf8_text(excerpt(listed.answer, MAX_QUESTION_CHARS)) or None


def _info_values(listed: RolloutListing) -> dict[str, str | float]:
    """Return the fields of the row's `info` that are numbers, truth values or short texts."""
    encoded = bytes(listed.info)
    if len(encoded) > MAX_INFO_BYTES:
        return {}
    info = msgspec.json.decode(encoded)
    fields: dict[str, str | float] = {}
    for name, value in info.items() if isinstance(info, dict) else ():
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # so that 3.0 is shown and compared as 3
        if isinstance(value, bool):
            fields[utf8_text(name)] = str(value)
        elif (isinstance(value, (int, float)) and abs(value) < 1 << 53) or (
            isinstance(value, str) and 0 < len(value) <= MAX_INFO_CHARS
        ):
            fields[utf8_text(name)] = utf8_text(value) if isinstance(value, str) else value
    return fields


def _reply(listed: RolloutListing) -> str | None:
    """Return the model's answer, shortened: the last message without reasoning, or only the content of a tag at its end.

    For example, "<think>2 + 2</think>The answer is <answer>4</answer>" gives "4". None if the model did not respond.
    """
    last = next((message for message in reversed(listed.completion) if message.get("role") == "assistant"), None)
    if last is None:
        return None
    try:
        text = text_of(last).rpartition("</think>")[2].strip()
        calls = last.get("tool_calls") or []
        if not text and calls:
            text = ", ".join(f"{call['function']['name']}({call['function']['arguments']})" for call in calls)
    except (AttributeError, TypeError, KeyError):  # see `_question`
        return None
    tag = FINAL_TAG.search(text)
    text = excerpt(tag[2] if tag and tag[2].strip() else text, MAX_QUESTION_CHARS)
    return utf8_text(text) if text else None


MAX_INDEXES = 1000
"""Maximum number of indexes in the cache folder."""
MAX_INDEX_BYTES = 4 << 30
"""Maximum size of all indexes together."""


def index_folder() -> Path:
    """Return the folder of all indexes, `indexes` in rove's cache folder; it need not exist."""
    return cache_folder() / "indexes"


def store_of(file: Path, folder: Path | None) -> Path | None:
    """Return the database file of a rollouts.jsonl, named after its path; None if there is no folder for indexes.

    Args:
        folder: Folder of the indexes. Default: `index_folder()`.
    """
    try:
        folder = folder or index_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    # Not in the run folder: a stranger's database can be a link to another one, or contain wrong numbers
    # (docs/decisions/viewer.md).
    name = hashlib.blake2b(os.fsencode(file.parent.resolve() / file.name), digest_size=16).hexdigest()
    return folder / f"{name}.sqlite"


def remove_index(store: Path) -> None:
    """Delete an index, and the journal file that a killed process may have left."""
    store.unlink(missing_ok=True)
    store.with_name(f"{store.name}-journal").unlink(missing_ok=True)


def drop_indexes(folder: Path, keep: Path, max_indexes: int = MAX_INDEXES, max_bytes: int = MAX_INDEX_BYTES) -> None:
    """Delete indexes whose file is gone, then the least recently used indexes beyond the limits.

    Args:
        max_bytes: Maximum total size in bytes.
    """
    existing = []
    for store in folder.glob("*.sqlite"):
        with suppress(OSError):  # another process may be deleting it
            if store != keep and not _has_source(store):
                remove_index(store)
                continue
            stat = store.stat()
            existing.append((store == keep, stat.st_mtime_ns, stat.st_size, store))
    size = sum(entry[2] for entry in existing)
    existing.sort(reverse=True)
    while len(existing) > 1 and (len(existing) > max_indexes or size > max_bytes):
        _, _, freed, store = existing.pop()
        size -= freed
        remove_index(store)


def _has_source(store: Path) -> bool:
    """Return whether the file of an index still exists; True if the index is locked."""
    try:
        with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True, timeout=0.0)) as database:
            row = database.execute("SELECT file FROM source").fetchone()
    except sqlite3.OperationalError:  # another process is writing it
        return True
    except sqlite3.DatabaseError:
        return False
    return row is not None and os.path.lexists(row[0])
