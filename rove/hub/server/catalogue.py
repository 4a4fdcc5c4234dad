"""Queries on a hub's content, in the JSON format shared by the server and static exports.

`reader` is the owner whose private environments are visible, see `Access.reads`; None shows only public environments.
Environments that are not visible are treated as missing: queries about missing environments raise `RejectedError`
(404).
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec
from packaging.version import Version

from rove.core.errors import ConfigError, RejectedError
from rove.core.plain import JsonObject
from rove.hub.server.store import Store, StoredFile

SCHEMA = 1
ARCHIVES = ("wheel", "source")
MAX_SEARCH_RESULTS = 1000
MAX_SEARCH_WORDS = 20

VISIBLE = "(private = 0 OR owner IS ?)"
ENTRY_QUERY = (
    "owner, name, version, description, tags, compatibility, licence, uploaded, downloads"
    f" FROM environments JOIN versions ON versions.id = latest WHERE {VISIBLE}"
)


class StoredRelease(NamedTuple):
    """A version with its files, as the simple index lists it."""

    version: str
    requires_python: str
    uploaded: str
    yanked: str | None
    files: list[StoredFile]


class FoundFile(NamedTuple):
    """A file to send to the client."""

    path: Path
    kind: str
    sha256: str
    private: bool


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A search."""

    q: str = ""
    """Words of which each must occur in the name, owner, description or tags."""
    tag: str = ""
    owner: str = ""
    compatibility: str = ""
    limit: int = 100
    offset: int = 0

    def __post_init__(self) -> None:
        if len(self.q) > 500 or len(self.q.split()) > MAX_SEARCH_WORDS:
            raise ConfigError(f"q is too long; expected at most {MAX_SEARCH_WORDS} words and 500 characters")
        if not 0 <= self.limit <= MAX_SEARCH_RESULTS:
            raise ConfigError(
                f"limit is {self.limit}; expected 0 to {MAX_SEARCH_RESULTS}; use offset for further results"
            )
        if not 0 <= self.offset < 1 << 53:
            raise ConfigError(f"offset is {self.offset}; expected 0 or more")


def listing(store: Store, hub: str, search: str | None = None) -> JsonObject:
    """Return the public environments of a hub named `hub`: the content of `/index.json`.

    `search` is the path of the search API; None in a static export.
    """
    rows = store.database.query(f"SELECT {ENTRY_QUERY} ORDER BY owner, name", [None])
    return {"schema": SCHEMA, "hub": hub, "environments": [_entry(row) for row in rows], "search": search}


def search(store: Store, query: Query, reader: str | None = None) -> JsonObject:
    """Return the environments that match a query, name matches first, then by downloads."""
    words = query.q.casefold().split()
    conditions = [("instr(words, ?)", word) for word in words]
    if query.tag:
        conditions.append(("EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)", query.tag))
    if query.owner:
        conditions.append(("owner = ?", query.owner))
    if query.compatibility:
        conditions.append(("compatibility = ?", query.compatibility))
    conditions_sql = "".join(f" AND {sql}" for sql, _ in conditions)
    values = [reader, *(value for _, value in conditions)]
    # Without words, no name matches better than another: ORDER BY (NULL) keeps the order of downloads.
    named = " AND ".join(["instr(name, ?)"] * len(words)) or "NULL"
    order = f"ORDER BY ({named}) DESC, downloads DESC, owner, name LIMIT ? OFFSET ?"
    rows = store.database.query(
        f"SELECT {ENTRY_QUERY}{conditions_sql} {order}", [*values, *words, query.limit, query.offset]
    )
    [(total,)] = store.database.query(f"SELECT COUNT(*) FROM (SELECT {ENTRY_QUERY}{conditions_sql})", values)
    return {"environments": [_entry(row) for row in rows], "total": total}


def environment(store: Store, owner: str, name: str, reader: str | None = None) -> JsonObject:
    """Return an environment's versions, highest last: the content of `/OWNER/NAME/index.json`."""
    versions = [
        {
            "version": release.version,
            "uploaded": release.uploaded,
            "yanked": release.yanked,
            "manifest": next(file.sha256 for file in release.files if file.kind == "manifest"),
            "files": [
                {"filename": file.filename, "sha256": file.sha256, "size": file.size}
                for file in release.files
                if file.kind in ARCHIVES
            ],
        }
        for release in releases(store, owner, name, reader)
    ]
    return {"schema": SCHEMA, "owner": owner, "name": name, "versions": versions, "keys": keys(store, owner)}


def entry(store: Store, owner: str, name: str, reader: str | None = None) -> JsonObject:
    """Return an environment's entry in the list."""
    rows = store.database.query(f"SELECT {ENTRY_QUERY} AND owner = ? AND name = ?", [reader, owner, name])
    if not rows:
        raise _no_environment(owner, name)
    return _entry(rows[0])


def facets(store: Store, reader: str | None = None) -> dict[str, dict[str, int]]:
    """Return the filters of the list: each tag, owner and API with its number of environments, most frequent first."""
    counts: dict[str, Counter[str]] = {"tag": Counter(), "owner": Counter(), "compatibility": Counter()}
    for row in store.database.query(f"SELECT {ENTRY_QUERY} ORDER BY owner, name", [reader]):
        counts["tag"].update(msgspec.json.decode(row["tags"], type=list[str]))
        counts["owner"][row["owner"]] += 1
        counts["compatibility"][row["compatibility"]] += 1
    ordered = {}
    for name, counter in counts.items():
        ordered[name] = dict(sorted(counter.items(), key=lambda item: (-item[1], item[0])))
    return ordered


def keys(store: Store, owner: str) -> list[str]:
    """Return an owner's public keys."""
    rows = store.database.query("SELECT keys FROM owners WHERE owner = ?", [owner])
    return msgspec.json.decode(rows[0]["keys"], type=list[str]) if rows else []


def names(store: Store, owner: str, reader: str | None = None) -> list[str]:
    """Return the names of an owner's environments."""
    rows = store.database.query(
        f"SELECT name FROM environments WHERE owner = ? AND latest IS NOT NULL AND {VISIBLE} ORDER BY name",
        [owner, reader],
    )
    # An owner with only private environments looks like an unknown one to others (docs/hub_server.md).
    if not rows and reader != owner:
        raise RejectedError(404, f"this hub has no environments of an owner '{owner[:80]}'")
    return [row["name"] for row in rows]


def has_private(store: Store, owner: str) -> bool:
    """Return whether an owner has a private environment."""
    return bool(store.database.query("SELECT 1 FROM environments WHERE owner = ? AND private LIMIT 1", [owner]))


def releases(store: Store, owner: str, name: str, reader: str | None = None) -> list[StoredRelease]:
    """Return an environment's versions with their files, highest last."""
    rows = store.database.query(
        "SELECT versions.version, requires_python, uploaded, yanked, filename, kind, sha256, size FROM environments"
        " JOIN versions ON versions.environment = environments.id JOIN files ON files.version = versions.id"
        f" WHERE owner = ? AND name = ? AND {VISIBLE}",
        [owner, name, reader],
    )
    if not rows:
        raise _no_environment(owner, name)
    releases_by_version: dict[str, StoredRelease] = {}
    for version, requires_python, uploaded, yanked, *file in rows:
        release = releases_by_version.setdefault(version, StoredRelease(version, requires_python, uploaded, yanked, []))
        release.files.append(StoredFile(*file))
    return sorted(releases_by_version.values(), key=lambda release: Version(release.version))


def find_file(store: Store, owner: str, name: str, version: str, filename: str, reader: str | None = None) -> FoundFile:
    """Return a file of a version."""
    rows = store.database.query(
        "SELECT kind, sha256, private FROM environments JOIN versions ON versions.environment = environments.id"
        f" JOIN files ON files.version = versions.id WHERE owner = ? AND name = ? AND {VISIBLE}"
        " AND versions.version = ? AND filename = ?",
        [owner, name, reader, version, filename],
    )
    if not rows:
        raise RejectedError(404, "this hub has no such file")
    [(kind, sha256, private)] = rows
    return FoundFile(store.files / owner / name / version / filename, kind, sha256, bool(private))


def runs(store: Store, owner: str, name: str, version: str, reader: str | None = None) -> JsonObject:
    """Return the results pushed for a version, oldest first: the content of `runs/index.json`."""
    versions = "environments JOIN versions ON versions.environment = environments.id"
    is_requested = f"owner = ? AND name = ? AND {VISIBLE} AND versions.version = ?"
    values = [owner, name, reader, version]
    if not store.database.query(f"SELECT 1 FROM {versions} WHERE {is_requested}", values):
        raise RejectedError(404, "this hub has no such version")
    rows = store.database.query(
        f"SELECT runs.id, model, runs.uploaded, summary, sha256, size FROM {versions}"
        f" JOIN runs ON runs.version = versions.id WHERE {is_requested} ORDER BY runs.uploaded, runs.id",
        values,
    )
    entries = [{**dict(row), "summary": msgspec.Raw(row["summary"].encode())} for row in rows]
    return {"schema": SCHEMA, "runs": entries}


def find_run(store: Store, owner: str, name: str, version: str, id: str, reader: str | None = None) -> FoundFile:
    """Return the file of one pushed result."""
    for run in runs(store, owner, name, version, reader)["runs"]:
        if run["id"] == id:
            path = store.files / owner / name / version / "runs" / f"{id}.json"
            # As if it were private: the query does not tell whether the environment is public.
            return FoundFile(path, "run", run["sha256"], private=True)
    raise RejectedError(404, "this hub has no such results")


def _no_environment(owner: str, name: str) -> RejectedError:
    return RejectedError(404, f"this hub has no environment '{owner[:80]}/{name[:80]}'")


def _entry(row: sqlite3.Row) -> JsonObject:
    columns = ("owner", "name", "version", "description", "compatibility", "licence", "downloads")
    return {key: row[key] for key in columns} | {"tags": msgspec.json.decode(row["tags"]), "updated": row["uploaded"]}
