"""The tables of a hub, in SQLite: whatever is not in them is not on the hub."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rove.core.errors import ConfigError

FILE = "hub.sqlite"
VERSION = 1
"""Of the tables."""
TIME = "%Y-%m-%dT%H:%M:%SZ"
"""ISO 8601, in UTC."""
PATIENCE = 60.0
"""Seconds to wait for another process that writes."""

TABLES = f"""
CREATE TABLE owners (
  owner TEXT PRIMARY KEY,
  skeleton TEXT NOT NULL UNIQUE,
  created TEXT NOT NULL,
  keys TEXT NOT NULL DEFAULT '[]',
  mirrored TEXT
);
CREATE TABLE tokens (
  id INTEGER PRIMARY KEY,
  owner TEXT NOT NULL REFERENCES owners,
  digest BLOB NOT NULL UNIQUE,
  scopes TEXT NOT NULL,
  note TEXT NOT NULL,
  created TEXT NOT NULL,
  expires TEXT,
  revoked TEXT
);
CREATE TABLE environments (
  id INTEGER PRIMARY KEY,
  owner TEXT NOT NULL REFERENCES owners,
  name TEXT NOT NULL,
  skeleton TEXT NOT NULL,
  private INTEGER NOT NULL,
  downloads INTEGER NOT NULL DEFAULT 0,
  latest INTEGER,
  UNIQUE (owner, name),
  UNIQUE (owner, skeleton)
);
CREATE TABLE versions (
  id INTEGER PRIMARY KEY,
  environment INTEGER NOT NULL REFERENCES environments,
  version TEXT NOT NULL,
  same TEXT NOT NULL,
  uploaded TEXT NOT NULL,
  yanked TEXT,
  requires_python TEXT NOT NULL,
  description TEXT NOT NULL,
  tags TEXT NOT NULL,
  compatibility TEXT NOT NULL,
  licence TEXT NOT NULL,
  words TEXT NOT NULL,
  UNIQUE (environment, version),
  UNIQUE (environment, same)
);
CREATE TABLE files (
  version INTEGER NOT NULL REFERENCES versions,
  filename TEXT NOT NULL,
  kind TEXT NOT NULL,
  sha256 TEXT NOT NULL,
  size INTEGER NOT NULL,
  PRIMARY KEY (version, filename)
) WITHOUT ROWID;
CREATE TABLE runs (
  version INTEGER NOT NULL REFERENCES versions,
  id TEXT NOT NULL,
  model TEXT NOT NULL,
  uploaded TEXT NOT NULL,
  summary TEXT NOT NULL,
  sha256 TEXT NOT NULL,
  size INTEGER NOT NULL,
  PRIMARY KEY (version, id)
) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
"""
"""`same`: what all ways to write a version share; `words`: what a search looks through; `latest`: the version that is
shown; `mirrored`: the hub that an owner's environments come from; times are ISO 8601 in UTC."""


class Database:
    """The tables of a data folder; calls may come from any thread, and other processes may use them at the same time.

    Args:
        file: of SQLite; made if it is not there.

    Raises:
        ConfigError: it is no such database, or one of a newer rove.
    """

    def __init__(self, file: Path):
        self.file = file
        self._writing = threading.Lock()
        self._mine = threading.local()
        self._connections: list[sqlite3.Connection] = []
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            self.close()
            raise ConfigError(f"{file} cannot be used as the tables of a hub ({error}); give another --data") from error

    def close(self) -> None:
        """Close every connection; nobody may use it any more."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._mine = threading.local()

    def ask(self, sql: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """The rows of a query."""
        return self._connection().execute(sql, values).fetchall()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction: what is done in it is on disk when it ends, or not done at all if it raises.

        There is one at a time, of all processes, so that what is looked up in it stays true until it ends.
        """
        connection = self._connection()
        with self._writing:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _connection(self) -> sqlite3.Connection:
        found = getattr(self._mine, "connection", None)
        if found is None:
            found = sqlite3.connect(self.file, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
            self._connections.append(found)
            found.row_factory = sqlite3.Row
            for setting in ("synchronous = FULL", "foreign_keys = ON", "trusted_schema = OFF"):
                found.execute(f"PRAGMA {setting}")
            self._mine.connection = found
        return found

    def _prepare(self) -> None:
        connection = self._connection()
        connection.execute("PRAGMA journal_mode = WAL")
        with self.write():
            [(version,)] = connection.execute("PRAGMA user_version").fetchall()
            if version > VERSION:
                raise ConfigError(f"{self.file} is of a newer rove (tables {version}, here {VERSION}); update rove")
            if version == 0:
                for statement in TABLES.split(";\n"):
                    connection.execute(statement)


def now() -> str:
    """This second."""
    return datetime.now(UTC).strftime(TIME)
