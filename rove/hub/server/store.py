"""The data folder of a hub: packages as files, and the tables that say which of them are on the hub.

    DATA/hub.sqlite                      the tables
    DATA/files/OWNER/NAME/VERSION/…      a version's files, and runs/ID.json: laid out as the hub serves them
    DATA/drafts/…                        uploads on their way; nothing in here is on the hub

A version comes from a draft: its files are on disk before the folder is renamed to its place, and that happens inside the
transaction that makes its rows. Whoever dies on the way leaves a draft, or a folder that no row knows: `sweep` throws both away.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from packaging.version import Version

from rove.core.errors import ConfigError
from rove.hub.package.manifest import Manifest
from rove.hub.package.names import check_name, check_owner, check_version, skeleton, version_key
from rove.hub.server.database import FILE, Database, now
from rove.hub.server.errors import Refused
from rove.hub.server.results import MOST_RUNS, Result
from rove.hub.server.tokens import Access

try:
    import fcntl
except ImportError:  # Windows: a second process that sweeps is not noticed there
    fcntl = None


class Kept(msgspec.Struct, frozen=True):
    """A file of a version."""

    filename: str
    kind: str
    """wheel, source, manifest, signature or readme."""
    sha256: str
    size: int


class Store:
    """A hub's data folder; calls may come from any thread.

    Args:
        folder: made if it is not there.

    Raises:
        ConfigError: it holds something else, or is of a newer rove.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).absolute()
        self.files, self.drafts = self.folder / "files", self.folder / "drafts"
        if self.folder.is_dir() and any(self.folder.iterdir()) and not (self.folder / FILE).is_file():
            raise ConfigError(f"{self.folder} holds something else than a hub; give a new folder with --data")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self.files, self.drafts):
            path.mkdir(exist_ok=True)
        self.database = Database(self.folder / FILE)
        self._lock = (self.folder / ".lock").open("ab")

    def close(self) -> None:
        """Let go of the folder."""
        self.database.close()
        self._lock.close()

    # owners

    def add_owner(self, owner: str, keys: Sequence[str] | None = None, mirrored: str | None = None) -> bool:
        """Make an owner; returns whether there was none of this name.

        Args:
            owner: its name.
            keys: public Ed25519 keys in base64, one of which has to have signed each of its packages from now on; [] = none
                has to, None = leave them as they are.
            mirrored: the hub that its environments come from.

        Raises:
            ConfigError: the name cannot be one.
            Refused: it can be confused with another owner's.
        """
        check_owner(owner)
        with self.database.write() as change:
            new = not change.execute("SELECT 1 FROM owners WHERE owner = ?", [owner]).fetchall()
            if new:
                for (other,) in change.execute("SELECT owner FROM owners WHERE skeleton = ?", [skeleton(owner)]):
                    raise Refused(409, f"'{owner}' can be confused with the owner '{other}'; choose another name")
                values = [owner, skeleton(owner), now(), mirrored]
                change.execute("INSERT INTO owners (owner, skeleton, created, mirrored) VALUES (?, ?, ?, ?)", values)
            if keys is not None:
                text = msgspec.json.encode(list(keys)).decode()
                change.execute("UPDATE owners SET keys = ? WHERE owner = ?", [text, owner])
        return new

    # versions

    def draft(self) -> Path:
        """A new folder for the files of a version."""
        path = self.drafts / secrets.token_hex(8)
        path.mkdir()
        return path

    def check_new(self, owner: str, name: str, version: str, change: sqlite3.Connection | None = None) -> None:
        """Whether there is room for a version; inside a transaction the answer stays true until it ends.

        Raises:
            ConfigError: these are no names and no version, or not in their one form.
            Refused: there is no such owner, the name can be confused with another one of theirs, or the version is there.
        """
        check_owner(owner)
        check_name(name)
        check_version(version)
        ask = change.execute if change else self.database.ask
        if not list(ask("SELECT 1 FROM owners WHERE owner = ?", [owner])):
            raise Refused(404, f"there is no owner '{owner}' on this hub")
        sql = "SELECT id, name FROM environments WHERE owner = ? AND skeleton = ?"
        for id, other in ask(sql, [owner, skeleton(name)]):
            if other != name:
                raise Refused(
                    409, f"'{name}' can be confused with {owner}/{other}, which is there; choose another name"
                )
            same = [id, version_key(version)]
            for (there,) in ask("SELECT version FROM versions WHERE environment = ? AND same = ?", same):
                raise Refused(
                    409,
                    f"{owner}/{name} {there} is there already and never changes; give the next version a new number",
                )

    def add(
        self,
        owner: str,
        manifest: Manifest,
        draft: Path,
        kept: Sequence[Kept],
        *,
        private: bool = False,
        uploaded: str | None = None,
        yanked: str | None = None,
    ) -> None:
        """Put a checked version on the hub, or raise and leave everything as it was.

        Args:
            owner: whose it is.
            manifest: what the package says of itself.
            draft: folder of `draft` with its files; gone afterwards in any case.
            kept: what the files in it are.
            private: where the environment is new: who has no token for it never learns of it.
            uploaded: when it was; None = now.
            yanked: why it should not be used, if so.

        Raises:
            ConfigError: it has no proper name.
            Refused: see `check_new`.
        """
        try:
            _sync(*(draft / file.filename for file in kept), draft)
            with self.database.write() as change:
                self.check_new(owner, manifest.name, manifest.version, change)
                id = _environment(change, owner, manifest.name, private)
                _insert_version(change, id, owner, manifest, kept, uploaded or now(), yanked)
                place = self.files / owner / manifest.name / manifest.version
                shutil.rmtree(place, ignore_errors=True)  # of somebody who died here: no row knows it
                place.parent.mkdir(parents=True, exist_ok=True)
                os.rename(draft, place)
                _sync(place.parent, place.parent.parent, self.files)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def yank(self, owner: str, name: str, version: str, reason: str | None) -> None:
        """Advise against a version, which stays for whoever asks for exactly it; None takes that back.

        Raises:
            Refused: there is no such version.
        """
        with self.database.write() as change:
            environment, id = _version_id(change, owner, name, version)
            change.execute("UPDATE versions SET yanked = ? WHERE id = ?", [reason, id])
            _choose_latest(change, environment)

    def set_private(self, owner: str, name: str, private: bool, access: Access) -> None:
        """Hide an environment or show it; one that is not there yet begins so.

        Args:
            owner: whose it is.
            name: its name.
            private: whether only tokens of the owner can find it.
            access: who wants it. Who may only upload cannot show what is hidden, but can begin something hidden.

        Raises:
            ConfigError: these are no names.
            Refused: they may not, or see `check_new`.
        """
        with self.database.write() as change:
            access.check_upload(owner, name)
            sql = "SELECT private FROM environments WHERE owner = ? AND name = ?"
            now_private = [bool(row[0]) for row in change.execute(sql, [owner, name])]
            if not now_private:
                self.check_new(owner, name, "0", change)
            elif now_private != [private]:
                access.check_admin(owner, f"show or hide {owner}/{name}")
            id = _environment(change, owner, name, private)
            change.execute("UPDATE environments SET private = ? WHERE id = ?", [private, id])

    def add_run(self, owner: str, name: str, version: str, run: Result) -> None:
        """Keep a model's results on a version; the same results again change nothing.

        Raises:
            Refused: there is no such version, or it has too many of them.
        """
        draft = self.draft()
        try:
            (draft / run.id).write_bytes(run.content)
            _sync(draft / run.id)
            with self.database.write() as change:
                _, id = _version_id(change, owner, name, version)
                [(count,)] = change.execute("SELECT COUNT(*) FROM runs WHERE version = ?", [id])
                if count >= MOST_RUNS:
                    raise Refused(409, f"{owner}/{name} {version} has {count} runs, which is the most")
                values = [id, run.id, run.model, now(), run.summary, run.sha256, len(run.content)]
                change.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", values)
                folder = self.files / owner / name / version / "runs"
                folder.mkdir(exist_ok=True)
                os.replace(draft / run.id, folder / f"{run.id}.json")
                _sync(folder, folder.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def count(self, downloads: Mapping[tuple[str, str], int]) -> None:
        """Add to the downloads of environments, by owner and name."""
        with self.database.write() as change:
            change.executemany(
                "UPDATE environments SET downloads = downloads + ? WHERE owner = ? AND name = ?",
                [(count, owner, name) for (owner, name), count in downloads.items()],
            )

    # after a crash

    def enter(self) -> list[str]:
        """Begin to work on the folder: throw away what was on its way when somebody died.

        While another process works on the folder nothing is thrown away: what is half may become whole there.

        Returns:
            the files of the hub that are not there or not whole; there are none unless somebody else has touched the folder.
        """
        if fcntl is None:
            return self._sweep()
        missing: list[str] = []
        with suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            missing = self._sweep()
        fcntl.flock(self._lock, fcntl.LOCK_SH)  # until `close`
        return missing

    def _sweep(self) -> list[str]:
        with self.database.write() as change:
            versions = change.execute(
                "SELECT owner, name, versions.version, versions.id FROM versions"
                " JOIN environments ON environments.id = environment"
            )
            known = {self.files.joinpath(*row[:3]): row[3] for row in versions}
            for place in self.files.glob("*/*/*"):
                if place not in known:
                    _throw_away(place)
            for run in self.files.glob("*/*/*/runs/*"):
                found = [known[run.parent.parent], run.stem]
                if not change.execute("SELECT 1 FROM runs WHERE version = ? AND id = ?", found).fetchall():
                    run.unlink()
            for folder in (*self.files.glob("*/*/*/runs"), *self.files.glob("*/*"), *self.files.glob("*")):
                with suppress(OSError):  # it is not empty
                    folder.rmdir()
            files = change.execute("SELECT version, filename, size FROM files").fetchall()
        for draft in self.drafts.iterdir():
            _throw_away(draft)
        places = {id: place for place, id in known.items()}
        return [
            str(places[id] / filename)
            for id, filename, size in files
            if not (places[id] / filename).is_file() or (places[id] / filename).stat().st_size != size
        ]


def _throw_away(path: Path) -> None:
    """Delete a folder, or a file that lies where folders do."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _environment(change: sqlite3.Connection, owner: str, name: str, private: bool) -> int:
    """The row of an environment, a new one if it has none."""
    sql = "INSERT OR IGNORE INTO environments (owner, name, skeleton, private) VALUES (?, ?, ?, ?)"
    change.execute(sql, [owner, name, skeleton(name), private])
    [(id,)] = change.execute("SELECT id FROM environments WHERE owner = ? AND name = ?", [owner, name])
    return id


def _insert_version(
    change: sqlite3.Connection,
    environment: int,
    owner: str,
    manifest: Manifest,
    kept: Sequence[Kept],
    uploaded: str,
    yanked: str | None,
) -> None:
    words = " ".join((owner, manifest.name, manifest.description, *manifest.tags)).casefold()
    row = {
        "environment": environment,
        "version": manifest.version,
        "same": version_key(manifest.version),
        "uploaded": uploaded,
        "yanked": yanked,
        "requires_python": manifest.requires_python,
        "description": manifest.description,
        "tags": msgspec.json.encode(manifest.tags).decode(),
        "compatibility": manifest.compatibility,
        "licence": manifest.licence,
        "words": words,
    }
    columns, marks = ", ".join(row), ", ".join("?" * len(row))
    id = change.execute(f"INSERT INTO versions ({columns}) VALUES ({marks})", list(row.values())).lastrowid
    files = [(id, file.filename, file.kind, file.sha256, file.size) for file in kept]
    change.executemany("INSERT INTO files VALUES (?, ?, ?, ?, ?)", files)
    _choose_latest(change, environment)


def _choose_latest(change: sqlite3.Connection, environment: int) -> None:
    """The version that is shown: the highest that is neither yanked nor a pre-release, where there is one."""
    rows = change.execute("SELECT id, version, yanked FROM versions WHERE environment = ?", [environment]).fetchall()
    id, _, _ = max(rows, key=lambda row: (row[2] is None, not Version(row[1]).is_prerelease, Version(row[1])))
    change.execute("UPDATE environments SET latest = ? WHERE id = ?", [id, environment])


def _version_id(change: sqlite3.Connection, owner: str, name: str, version: str) -> tuple[int, int]:
    """The rows of an environment and of a version of it.

    Raises:
        Refused: there is no such version.
    """
    rows = change.execute(
        "SELECT environment, versions.id FROM versions JOIN environments ON environments.id = environment"
        " WHERE owner = ? AND name = ? AND version = ?",
        [owner, name, version],
    ).fetchall()
    if not rows:
        raise Refused(404, f"there is no {owner}/{name} {version} on this hub")
    return rows[0]


def _sync(*paths: Path) -> None:
    """Wait until files, or the names in folders, are on disk."""
    for path in paths:
        if path.is_dir() and os.name == "nt":
            continue
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
