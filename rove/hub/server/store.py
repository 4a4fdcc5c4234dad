"""The data folder of a hub: package files, and the database that decides which of them are published.

    DATA/hub.sqlite                      the database
    DATA/files/OWNER/NAME/VERSION/…      a version's files, and runs/ID.json, in the layout that the hub serves
    DATA/drafts/…                        unfinished uploads

A version is published from a draft: its files are synced to disk, then the folder is renamed inside the transaction that
inserts its rows. A crash leaves a draft or a folder without rows; `Store.enter` deletes both.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from packaging.version import Version

from rove.core.errors import ConfigError, RejectedError
from rove.core.plain import UNREADABLE, JsonObject
from rove.hub.package.manifest import Manifest, find_markup
from rove.hub.package.names import check_name, check_owner, check_version, skeleton, version_key
from rove.hub.server.database import FILE, Database, now
from rove.hub.server.tokens import Access
from rove.utils.systems import can_lock, lock_file, rename, sync_files

MAX_RUN_BYTES = 4 << 20
MAX_MODEL_CHARS = 200
MAX_SUMMARY_BYTES = 64 << 10
"""Maximum size of a summary, which is part of the list of runs."""
MAX_RUNS_PER_VERSION = 1000


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a version."""

    filename: str
    kind: str
    """Kind of file: "wheel", "source", "manifest", "signature" or "readme"."""
    sha256: str
    size: int


class Result(NamedTuple):
    """Validated results of one run."""

    id: str
    """Hash of the content, so that repeated pushes are stored once."""
    model: str
    summary: str
    """Summary as JSON."""
    sha256: str
    content: bytes


class _PushedRun(msgspec.Struct):
    model: str
    summary: JsonObject


def read_run(content: bytes) -> Result:
    """Validate pushed results, a JSON object with `model` (a name), `summary` (an object) and other fields, and return them."""
    try:
        pushed = msgspec.json.decode(content, type=_PushedRun)
        written = msgspec.json.encode(msgspec.json.decode(content), order="sorted")
    except UNREADABLE as error:
        raise RejectedError(400, f"the results of a run are malformed: {error}") from error
    if not 0 < len(pushed.model) <= MAX_MODEL_CHARS or not pushed.model.isprintable() or find_markup(pushed.model):
        raise RejectedError(
            400, f"the model's name must be one line of plain text of at most {MAX_MODEL_CHARS} characters"
        )
    summary = msgspec.json.encode(pushed.summary, order="sorted")
    if len(summary) > MAX_SUMMARY_BYTES:
        raise RejectedError(413, f"the summary has {len(summary):,} bytes; expected at most {MAX_SUMMARY_BYTES:,}")
    sha256 = hashlib.sha256(written).hexdigest()
    return Result(sha256[:16], pushed.model, summary.decode(), sha256, written)


class Store:
    """A hub's data folder; thread-safe.

    Args:
        folder: The folder; created if missing.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).absolute()
        self.files, self.drafts = self.folder / "files", self.folder / "drafts"
        if self.folder.is_dir() and any(self.folder.iterdir()) and not (self.folder / FILE).is_file():
            raise ConfigError(f"{self.folder} is not a hub's data folder; choose a new folder with --data")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self.files, self.drafts):
            path.mkdir(exist_ok=True)
        self.database = Database(self.folder / FILE)
        self._lock = (self.folder / ".lock").open("ab")

    def close(self) -> None:
        """Close the database and release the lock."""
        self.database.close()
        self._lock.close()

    def add_owner(self, owner: str, keys: Sequence[str] | None = None) -> bool:
        """Create or update an owner; return whether it is new.

        Args:
            keys: Public Ed25519 keys in base64; one of them must sign each future package. [] makes signing optional; None
                keeps the current keys.
        """
        check_owner(owner)
        with self.database.write() as transaction:
            is_new = transaction.execute("SELECT 1 FROM owners WHERE owner = ?", [owner]).fetchone() is None
            if is_new:
                # Names that look alike have the same skeleton, so no one can pose as another owner.
                confusable = "SELECT owner FROM owners WHERE skeleton = ?"
                similar = transaction.execute(confusable, [skeleton(owner)]).fetchone()
                if similar is not None:
                    raise RejectedError(
                        409, f"'{owner}' is too similar to the owner '{similar[0]}'; choose another name"
                    )
                values = [owner, skeleton(owner), now()]
                transaction.execute("INSERT INTO owners (owner, skeleton, created) VALUES (?, ?, ?)", values)
            if keys is not None:
                text = msgspec.json.encode(list(keys)).decode()
                transaction.execute("UPDATE owners SET keys = ? WHERE owner = ?", [text, owner])
        return is_new

    def new_draft(self) -> Path:
        """Create a folder for the files of a new version."""
        path = self.drafts / secrets.token_hex(8)
        path.mkdir()
        return path

    def has_environment(self, owner: str, name: str) -> bool:
        """Return whether an owner has published an environment, or has reserved its name for a private one."""
        sql = """SELECT 1 FROM environments WHERE owner = ? AND name = ?
            AND (private OR EXISTS (SELECT 1 FROM versions WHERE environment = environments.id))"""
        return bool(list(self.database.query(sql, [owner, name])))

    def check_new(self, owner: str, name: str, version: str, change: sqlite3.Connection | None = None) -> None:
        """Check that a version can be published; in a transaction, the result stays valid until the transaction ends."""
        check_owner(owner)
        check_name(name)
        check_version(version)
        query = change.execute if change else self.database.query
        if not list(query("SELECT 1 FROM owners WHERE owner = ?", [owner])):
            raise RejectedError(404, f"this hub has no owner '{owner}'")
        sql = "SELECT id, name FROM environments WHERE owner = ? AND skeleton = ?"
        for id, similar in query(sql, [owner, skeleton(name)]):
            if similar != name:
                raise RejectedError(
                    409, f"'{name}' is too similar to the existing {owner}/{similar}; choose another name"
                )
            same = [id, version_key(version)]
            for (existing,) in query("SELECT version FROM versions WHERE environment = ? AND same = ?", same):
                raise RejectedError(
                    409,
                    f"{owner}/{name} {existing} already exists and cannot be changed; publish it under a new version number",
                )

    def add(self, owner: str, manifest: Manifest, draft: Path, files: Sequence[StoredFile]) -> None:
        """Publish a checked version atomically.

        Args:
            draft: Folder made by `new_draft` with the files `files`; always removed.
        """
        try:
            # Rows make files visible, so that the files must reach the disk first.
            sync_files(*(draft / file.filename for file in files), draft)
            with self.database.write() as change:
                self.check_new(owner, manifest.name, manifest.version, change)
                id = _environment(change, owner, manifest.name)
                _insert_version(change, id, owner, manifest, files)
                version_folder = self.files / owner / manifest.name / manifest.version
                shutil.rmtree(version_folder, ignore_errors=True)  # left by a crash: it has no rows
                version_folder.parent.mkdir(parents=True, exist_ok=True)
                rename(draft, version_folder)
                sync_files(version_folder.parent, version_folder.parent.parent, self.files)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def yank(self, owner: str, name: str, version: str, reason: str | None) -> None:
        """Yank a version, so that it is installed only if named explicitly; with the reason None, undo a yank."""
        with self.database.write() as change:
            environment, id = _version_id(change, owner, name, version)
            change.execute("UPDATE versions SET yanked = ? WHERE id = ?", [reason, id])
            _choose_latest(change, environment)

    def set_private(self, owner: str, name: str, private: bool, access: Access) -> None:
        """Make an environment private or public; create it if missing.

        Only tokens of the owner can see a private environment. An `access` with an upload scope can create one, but not change
        its visibility.
        """
        with self.database.write() as change:
            access.check_upload(owner, name)
            sql = "SELECT private FROM environments WHERE owner = ? AND name = ?"
            now_private = [bool(row[0]) for row in change.execute(sql, [owner, name])]
            if not now_private:
                self.check_new(owner, name, "0", change)
            elif now_private != [private]:
                access.check_admin(owner, f"show or hide {owner}/{name}")
            id = _environment(change, owner, name)
            change.execute("UPDATE environments SET private = ? WHERE id = ?", [private, id])

    def add_run(self, owner: str, name: str, version: str, run: Result) -> None:
        """Publish a model's results for a version; identical results are stored once."""
        draft = self.new_draft()
        try:
            (draft / run.id).write_bytes(run.content)
            sync_files(draft / run.id)
            with self.database.write() as change:
                _, id = _version_id(change, owner, name, version)
                [(count,)] = change.execute("SELECT COUNT(*) FROM runs WHERE version = ?", [id])
                if count >= MAX_RUNS_PER_VERSION:
                    raise RejectedError(409, f"{owner}/{name} {version} already has {count} runs, the maximum")
                values = [id, run.id, run.model, now(), run.summary, run.sha256, len(run.content)]
                change.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", values)
                folder = self.files / owner / name / version / "runs"
                folder.mkdir(exist_ok=True)
                rename(draft / run.id, folder / f"{run.id}.json")
                sync_files(folder, folder.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def add_downloads(self, downloads: Mapping[tuple[str, str], int]) -> None:
        """Add to the download counts of environments, by owner and name."""
        with self.database.write() as change:
            change.executemany(
                "UPDATE environments SET downloads = downloads + ? WHERE owner = ? AND name = ?",
                [(count, owner, name) for (owner, name), count in downloads.items()],
            )

    def recover(self) -> list[str]:
        """Open the folder for serving, and delete files that a crash left behind.

        Nothing is deleted while another process uses the folder, because the unfinished uploads of that process look the same
        as files that a crash left behind.

        Returns:
            Published files that are missing or have a wrong size; none unless the folder was modified from outside.
        """
        if not can_lock():
            return self._sweep()
        missing: list[str] = []
        with suppress(BlockingIOError):
            lock_file(self._lock, wait=False)
            missing = self._sweep()
        lock_file(self._lock, shared=True)  # until `close`
        return missing

    def _sweep(self) -> list[str]:
        with self.database.write() as change:
            versions = change.execute(
                "SELECT owner, name, versions.version, versions.id FROM versions"
                " JOIN environments ON environments.id = environment"
            )
            version_ids = {self.files.joinpath(*row[:3]): row[3] for row in versions}
            for folder in self.files.glob("*/*/*"):
                if folder not in version_ids:
                    _delete(folder)
            for run in self.files.glob("*/*/*/runs/*"):
                run_key = [version_ids[run.parent.parent], run.stem]
                if not change.execute("SELECT 1 FROM runs WHERE version = ? AND id = ?", run_key).fetchall():
                    run.unlink()
            for folder in (*self.files.glob("*/*/*/runs"), *self.files.glob("*/*"), *self.files.glob("*")):
                with suppress(OSError):  # not empty
                    folder.rmdir()
            files = change.execute("SELECT version, filename, size FROM files").fetchall()
        for draft in self.drafts.iterdir():
            _delete(draft)
        folders = {id: folder for folder, id in version_ids.items()}
        damaged = []
        for id, filename, size in files:
            file = folders[id] / filename
            if not file.is_file() or file.stat().st_size != size:
                damaged.append(str(file))
        return damaged


def _delete(path: Path) -> None:
    """Delete a folder or a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _environment(change: sqlite3.Connection, owner: str, name: str) -> int:
    """Return the id of an environment; create a public environment if it is missing."""
    sql = "INSERT OR IGNORE INTO environments (owner, name, skeleton, private) VALUES (?, ?, ?, ?)"
    change.execute(sql, [owner, name, skeleton(name), False])
    [(id,)] = change.execute("SELECT id FROM environments WHERE owner = ? AND name = ?", [owner, name])
    return id


def _insert_version(
    change: sqlite3.Connection, environment: int, owner: str, manifest: Manifest, stored_files: Sequence[StoredFile]
) -> None:
    words = " ".join((owner, manifest.name, manifest.description, *manifest.tags)).casefold()
    row = {
        "environment": environment,
        "version": manifest.version,
        "same": version_key(manifest.version),
        "uploaded": now(),
        "requires_python": manifest.requires_python,
        "description": manifest.description,
        "tags": msgspec.json.encode(manifest.tags).decode(),
        "compatibility": manifest.compatibility,
        "licence": manifest.licence,
        "words": words,
    }
    columns, marks = ", ".join(row), ", ".join("?" * len(row))
    id = change.execute(f"INSERT INTO versions ({columns}) VALUES ({marks})", list(row.values())).lastrowid
    files = [(id, file.filename, file.kind, file.sha256, file.size) for file in stored_files]
    change.executemany("INSERT INTO files VALUES (?, ?, ?, ?, ?)", files)
    _choose_latest(change, environment)


def _choose_latest(change: sqlite3.Connection, environment: int) -> None:
    """Set the version shown in lists: the highest, preferring final versions that are not yanked."""
    rows = change.execute("SELECT id, version, yanked FROM versions WHERE environment = ?", [environment]).fetchall()

    def preference(row: tuple[int, str, str | None]) -> tuple[bool, bool, Version]:
        _, text, yanked = row
        version = Version(text)
        return yanked is None, not version.is_prerelease, version

    id, _, _ = max(rows, key=preference)
    change.execute("UPDATE environments SET latest = ? WHERE id = ?", [id, environment])


def _version_id(change: sqlite3.Connection, owner: str, name: str, version: str) -> tuple[int, int]:
    """Return the ids of an environment and one of its versions."""
    rows = change.execute(
        "SELECT environment, versions.id FROM versions JOIN environments ON environments.id = environment"
        " WHERE owner = ? AND name = ? AND version = ?",
        [owner, name, version],
    ).fetchall()
    if not rows:
        raise RejectedError(404, f"this hub has no {owner}/{name} {version}")
    return rows[0]
