"""The folder in which the viewer's indexes are existing: the user's cache, never a run folder."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from rove.utils.files import cache_folder

MAX_INDEXES = 1000
"""Indexes existing in the cache folder."""
MAX_INDEX_BYTES = 4 << 30
"""Their size limit together."""


def index_folder() -> Path:
    """Return the folder of all indexes, `indexes` in rove's cache folder; it need not exist.

    Raises:
        RuntimeError: the user has no home folder.
    """
    return cache_folder() / "indexes"


def store_of(file: Path, folder: Path | None) -> Path | None:
    """Return where the index of a rollouts.jsonl is existing, by its path; None where there is no folder to keep it in.

    Args:
        file: the rollouts.jsonl.
        folder: of the indexes. Default: `index_folder()`.
    """
    try:
        folder = folder or index_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    name = hashlib.blake2b(os.fsencode(file.parent.resolve() / file.name), digest_size=16).hexdigest()
    return folder / f"{name}.sqlite"


def remove_index(store: Path) -> None:
    """Delete an index, and the journal that a killed process has left of it."""
    store.unlink(missing_ok=True)
    store.with_name(f"{store.name}-journal").unlink(missing_ok=True)


def drop_indexes(folder: Path, keep: Path, max_indexes: int = MAX_INDEXES, max_bytes: int = MAX_INDEX_BYTES) -> None:
    """Delete indexes whose file is gone, then the least recently used ones beyond the limits.

    Args:
        folder: Folder of the indexes.
        keep: The index that is never deleted.
        max_indexes: Maximum number of indexes.
        max_bytes: Maximum total size in bytes.
    """
    existing = []
    for store in folder.glob("*.sqlite"):
        with suppress(OSError):  # another process may be deleting it
            if store != keep and not _has_source(store):
                remove_index(store)
                continue
            found = store.stat()
            existing.append((store == keep, found.st_mtime_ns, found.st_size, store))
    size = sum(one[2] for one in existing)
    existing.sort(reverse=True)
    while len(existing) > 1 and (len(existing) > max_indexes or size > max_bytes):
        _, _, freed, store = existing.pop()
        size -= freed
        remove_index(store)


def _has_source(store: Path) -> bool:
    """Return whether the file of an index still exists; True if the index is locked."""
    try:
        with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True, timeout=0.0)) as database:
            found = database.execute("SELECT file FROM source").fetchone()
    except sqlite3.OperationalError:  # another process is writing it
        return True
    except sqlite3.DatabaseError:
        return False
    return found is not None and os.path.lexists(found[0])
