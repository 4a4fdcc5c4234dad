"""What is on a hub, as its JSON tells it: the same to whoever asks the server, and in a static export.

`reader` is everywhere the owner whose private environments may be seen, see `Access.reads`; None = what is public alone.
What may not be seen is not there, in any answer.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from packaging.version import Version

from rove.core.errors import ConfigError
from rove.hub.server.errors import Refused
from rove.hub.server.store import Kept, Store

SCHEMA = 1
ARCHIVES = ("wheel", "source")
MOST = 1000
"""Environments in one answer of a search."""
WORDS = 20
"""Words of a search."""

SEEN = "(private = 0 OR owner IS ?)"
SHOWN = (
    "owner, name, version, description, tags, compatibility, licence, uploaded, downloads"
    f" FROM environments JOIN versions ON versions.id = latest WHERE {SEEN}"
)


class Released(NamedTuple):
    """A version on the simple index: what an installer is told of it."""

    version: str
    requires_python: str
    uploaded: str
    yanked: str | None
    files: list[Kept]


class Found(NamedTuple):
    """A file to send."""

    path: Path
    kind: str
    sha256: str
    private: bool


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for."""

    q: str = ""
    """Words, all of which stand in the name, the owner, the description or the tags."""
    tag: str = ""
    owner: str = ""
    compatibility: str = ""
    limit: int = 100
    offset: int = 0

    def __post_init__(self) -> None:
        if len(self.q) > 500 or len(self.q.split()) > WORDS:
            raise ConfigError(f"q is too long; expected at most {WORDS} words and 500 characters")
        if not 0 <= self.limit <= MOST:
            raise ConfigError(f"limit is {self.limit}; expected 0 to {MOST}, and offset for what comes after")
        if not 0 <= self.offset < 1 << 53:
            raise ConfigError(f"offset is {self.offset}; expected 0 or more")


def listing(store: Store, hub: str, search: str | None = None) -> dict[str, Any]:
    """The public environments, as `/index.json`.

    Args:
        store: where they are.
        hub: its name.
        search: path of the search; None where nobody answers one.
    """
    rows = store.database.ask(f"SELECT {SHOWN} ORDER BY owner, name", [None])
    return {"schema": SCHEMA, "hub": hub, "environments": [_card(row) for row in rows], "search": search}


def search(store: Store, query: Query, reader: str | None = None) -> dict[str, Any]:
    """The environments that a query finds, those with all words in their name first, then those with most downloads."""
    words = query.q.casefold().split()
    wanted: list[tuple[str, list[Any]]] = [("instr(words, ?)", [word]) for word in words]
    if query.tag:
        wanted.append(("EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)", [query.tag]))
    wanted += [
        (f"{field} = ?", [getattr(query, field)]) for field in ("owner", "compatibility") if getattr(query, field)
    ]
    where = "".join(f" AND {sql}" for sql, _ in wanted)
    values = [reader, *(value for _, values in wanted for value in values)]
    named = " AND ".join(["instr(name, ?)"] * len(words)) or "NULL"
    order = f"ORDER BY ({named}) DESC, downloads DESC, owner, name LIMIT ? OFFSET ?"
    rows = store.database.ask(f"SELECT {SHOWN}{where} {order}", [*values, *words, query.limit, query.offset])
    [(total,)] = store.database.ask(f"SELECT COUNT(*) FROM (SELECT {SHOWN}{where})", values)
    return {"environments": [_card(row) for row in rows], "total": total}


def environment(store: Store, owner: str, name: str, reader: str | None = None) -> dict[str, Any]:
    """An environment's versions, highest last, as `/OWNER/NAME/index.json`.

    Raises:
        Refused: there is none of this name, for this reader.
    """
    versions = [
        {
            "version": release.version,
            "uploaded": release.uploaded,
            "yanked": release.yanked,
            "manifest": next(file.sha256 for file in release.files if file.kind == "manifest"),
            "files": [_plain(file) for file in release.files if file.kind in ARCHIVES],
        }
        for release in releases(store, owner, name, reader)
    ]
    return {"schema": SCHEMA, "owner": owner, "name": name, "versions": versions, "keys": keys(store, owner)}


def card(store: Store, owner: str, name: str, reader: str | None = None) -> dict[str, Any]:
    """An environment as the list tells it.

    Raises:
        Refused: there is none of this name, for this reader.
    """
    rows = store.database.ask(f"SELECT {SHOWN} AND owner = ? AND name = ?", [reader, owner, name])
    if not rows:
        raise _no_environment(owner, name)
    return _card(rows[0])


def facets(store: Store, reader: str | None = None) -> dict[str, dict[str, int]]:
    """What environments can be chosen by: each tag, owner and kind with how many have it, the most frequent first."""
    counts: dict[str, Counter[str]] = {"tag": Counter(), "owner": Counter(), "compatibility": Counter()}
    for row in store.database.ask(f"SELECT {SHOWN} ORDER BY owner, name", [reader]):
        counts["tag"].update(msgspec.json.decode(row["tags"], type=list[str]))
        counts["owner"][row["owner"]] += 1
        counts["compatibility"][row["compatibility"]] += 1
    return {name: dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))) for name, found in counts.items()}


def keys(store: Store, owner: str) -> list[str]:
    """An owner's public keys."""
    rows = store.database.ask("SELECT keys FROM owners WHERE owner = ?", [owner])
    return msgspec.json.decode(rows[0]["keys"], type=list[str]) if rows else []


def names(store: Store, owner: str, reader: str | None = None) -> list[str]:
    """The environments of an owner.

    Raises:
        Refused: there are none, for this reader.
    """
    rows = store.database.ask(
        f"SELECT name FROM environments WHERE owner = ? AND latest IS NOT NULL AND {SEEN} ORDER BY name",
        [owner, reader],
    )
    if not rows and reader != owner:
        raise Refused(404, f"there is nothing of an owner '{owner[:80]}' on this hub")
    return [row["name"] for row in rows]


def hides(store: Store, owner: str) -> bool:
    """Whether an owner has a private environment."""
    return bool(store.database.ask("SELECT 1 FROM environments WHERE owner = ? AND private LIMIT 1", [owner]))


def releases(store: Store, owner: str, name: str, reader: str | None = None) -> list[Released]:
    """An environment's versions, highest last.

    Raises:
        Refused: there is none of this name, for this reader.
    """
    rows = store.database.ask(
        "SELECT versions.version, requires_python, uploaded, yanked, filename, kind, sha256, size FROM environments"
        " JOIN versions ON versions.environment = environments.id JOIN files ON files.version = versions.id"
        f" WHERE owner = ? AND name = ? AND {SEEN}",
        [owner, name, reader],
    )
    if not rows:
        raise _no_environment(owner, name)
    found: dict[str, Released] = {}
    for version, requires_python, uploaded, yanked, *file in rows:
        release = found.setdefault(version, Released(version, requires_python, uploaded, yanked, []))
        release.files.append(Kept(*file))
    return sorted(found.values(), key=lambda release: Version(release.version))


def find(store: Store, owner: str, name: str, version: str, filename: str, reader: str | None = None) -> Found:
    """A file of a version.

    Raises:
        Refused: there is none, for this reader.
    """
    rows = store.database.ask(
        "SELECT kind, sha256, private FROM environments JOIN versions ON versions.environment = environments.id"
        f" JOIN files ON files.version = versions.id WHERE owner = ? AND name = ? AND {SEEN}"
        " AND versions.version = ? AND filename = ?",
        [owner, name, reader, version, filename],
    )
    if not rows:
        raise Refused(404, "there is no such file on this hub")
    [(kind, sha256, private)] = rows
    return Found(store.files / owner / name / version / filename, kind, sha256, bool(private))


def runs(store: Store, owner: str, name: str, version: str, reader: str | None = None) -> dict[str, Any]:
    """The results of models on a version, oldest first, as `runs/index.json`.

    Raises:
        Refused: there is no such version, for this reader.
    """
    sql = (
        "SELECT {} FROM environments JOIN versions ON versions.environment = environments.id {}"
        f" WHERE owner = ? AND name = ? AND {SEEN} AND versions.version = ?"
    )
    asked = [owner, name, reader, version]
    if not store.database.ask(sql.format("1", ""), asked):
        raise Refused(404, "there is no such version on this hub")
    columns = "runs.id, model, runs.uploaded, summary, sha256, size"
    rows = store.database.ask(
        sql.format(columns, "JOIN runs ON runs.version = versions.id") + " ORDER BY runs.uploaded, runs.id", asked
    )
    told = [{**dict(zip(row.keys(), row)), "summary": msgspec.Raw(row["summary"].encode())} for row in rows]
    return {"schema": SCHEMA, "runs": told}


def find_run(store: Store, owner: str, name: str, version: str, id: str, reader: str | None = None) -> Found:
    """The file of one of these results.

    Raises:
        Refused: there is none, for this reader.
    """
    for run in runs(store, owner, name, version, reader)["runs"]:
        if run["id"] == id:
            path = store.files / owner / name / version / "runs" / f"{id}.json"
            return Found(path, "run", run["sha256"], True)
    raise Refused(404, "there are no such results on this hub")


def _no_environment(owner: str, name: str) -> Refused:
    return Refused(404, f"there is no environment '{owner[:80]}/{name[:80]}' on this hub")


def _card(row: Any) -> dict[str, Any]:
    told = {
        key: row[key] for key in ("owner", "name", "version", "description", "compatibility", "licence", "downloads")
    }
    return {**told, "tags": msgspec.json.decode(row["tags"]), "updated": row["uploaded"]}


def _plain(file: Kept) -> dict[str, Any]:
    return {"filename": file.filename, "sha256": file.sha256, "size": file.size}
