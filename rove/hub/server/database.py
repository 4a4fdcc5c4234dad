"""The SQLite database of a hub; it decides which files are published."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rove.core.errors import ConfigError

FILE = "hub.sqlite"
SCHEMA_VERSION = 1
TIME = "%Y-%m-%dT%H:%M:%SZ"
"""Time format: ISO 8601, in UTC."""
LOCK_TIMEOUT_S = 60.0
"""Time limit for waiting for another process to finish writing."""

TABLES = f"""
CREATE TABLE owners (
  owner TEXT PRIMARY KEY,
  skeleton TEXT NOT NULL UNIQUE,
  created TEXT NOT NULL,
  keys TEXT NOT NULL DEFAULT '[]'
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
PRAGMA user_version = {SCHEMA_VERSION};
"""
"""Columns: `same` is a key that equal versions share, `words` the text to search in, `latest` the version shown in lists; times
are in ISO 8601, UTC."""


class Database:
    """The database of a data folder; thread-safe, and usable by several processes at once.

    Args:
        file: SQLite file; created if missing.
    """

    def __init__(self, file: Path):
        self.file = file
        self._writing = threading.Lock()
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            self.close()
            raise ConfigError(
                f"{file} cannot be used as a hub's database ({error}); choose another folder with --data"
            ) from error

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._local = threading.local()

    def query(self, sql: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        """Return the rows of a query."""
        return self._connection().execute(sql, values).fetchall()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Run a durable transaction that is rolled back on an exception.

        Only one transaction runs at a time across all processes, so data that is read in a transaction stays valid until it ends.
        """
        connection = self._connection()
        with self._writing:
            # A transaction that reads first and locks later fails if another process has written in between.
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _connection(self) -> sqlite3.Connection:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = sqlite3.connect(
                self.file, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._connections.append(connection)
            connection.row_factory = sqlite3.Row
            # In WAL mode only FULL keeps a confirmed upload through a power failure.
            for setting in ("synchronous = FULL", "foreign_keys = ON", "trusted_schema = OFF"):
                connection.execute(f"PRAGMA {setting}")
            self._local.connection = connection
        return connection

    def _prepare(self) -> None:
        connection = self._connection()
        connection.execute("PRAGMA journal_mode = WAL")
        with self.write():
            [(version,)] = connection.execute("PRAGMA user_version").fetchall()
            if version > SCHEMA_VERSION:
                raise ConfigError(
                    f"{self.file} was written by a newer rove (schema {version}, expected {SCHEMA_VERSION}); upgrade rove"
                )
            if version == 0:
                for statement in TABLES.split(";\n"):
                    connection.execute(statement)


def now() -> str:
    """Return the current time in `TIME` format."""
    return datetime.now(UTC).strftime(TIME)
