"""API tokens: who may do what on a hub. Only a token's hash is kept; the token itself is shown once, when it is made."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from rove.core.errors import ConfigError
from rove.hub.package.names import check_name, check_owner
from rove.hub.server.database import TIME, Database, now
from rove.hub.server.errors import Refused

PREFIX = "rove_"
"""How a token begins, so that people and scanners of secrets know one."""
LONGEST_TOKEN = 200
"""Characters of a text that is looked at as a token at all."""
DAYS = 365
"""A token is good for so long unless another time is given."""
NOTE = 100
"""Characters of what a token is for."""
READ, UPLOAD, ADMIN = "read", "upload:", "admin"
SCOPES = "expected 'read', 'upload:OWNER/NAME', 'upload:OWNER/*' or 'admin'"


class Access(NamedTuple):
    """What whoever asks may do. The default is anybody, who may read what is public."""

    owner: str | None = None
    scopes: tuple[str, ...] = ()

    @property
    def reads(self) -> str | None:
        """The owner whose private environments may be read, if any."""
        return self.owner if READ in self.scopes or ADMIN in self.scopes else None

    def check_upload(self, owner: str, name: str) -> None:
        """Whether OWNER/NAME may be changed.

        Raises:
            Refused: it may not.
        """
        wanted = {f"{UPLOAD}{owner}/{name}", f"{UPLOAD}{owner}/*"}
        if wanted.isdisjoint(self.scopes):
            self._check(owner, f"upload to {owner}/{name}", f"'{UPLOAD}{owner}/{name}'")

    def check_admin(self, owner: str, what: str) -> None:
        """Whether an owner's environments may be shown or hidden.

        Raises:
            Refused: they may not.
        """
        self._check(owner, what, f"'{ADMIN}'")

    def _check(self, owner: str, what: str, scope: str) -> None:
        if self.owner is None:
            raise Refused(401, f"to {what} takes a token; send it as 'Authorization: Bearer rove_…'")
        if self.owner != owner or ADMIN not in self.scopes:
            raise Refused(403, f"this token of '{self.owner}' may not {what}; it takes one with the scope {scope}")


class Token(NamedTuple):
    """A token as it is kept."""

    id: int
    owner: str
    scopes: tuple[str, ...]
    note: str
    created: str
    expires: str | None
    revoked: str | None


def make_token(
    database: Database, owner: str, scopes: Sequence[str] = (), days: float | None = DAYS, note: str = ""
) -> str:
    """A new token of an owner that is there.

    Args:
        database: of the hub.
        owner: whose it is.
        scopes: what it may do; none = read what is private of the owner, and upload for them.
        days: it is good for so long; None = for ever.
        note: what it is for, to tell it from others.

    Raises:
        ConfigError: there is no such owner, or something else is wrong with these.
    """
    check_owner(owner)
    scopes = tuple(dict.fromkeys(check_scope(scope) for scope in scopes)) or (READ, f"{UPLOAD}{owner}/*")
    if days is not None and not 0 < days <= 36500:
        raise ConfigError(f"a token for {days:g} days cannot be made; expected more than 0, at most 36500")
    if len(note) > NOTE or not note.isprintable():
        raise ConfigError(f"a token's note has at most {NOTE} printable characters")
    for needed in [owner, *(scope.removeprefix(UPLOAD).partition("/")[0] for scope in scopes if UPLOAD in scope)]:
        rows = database.ask("SELECT mirrored FROM owners WHERE owner = ?", [needed])
        if not rows:
            raise ConfigError(f"there is no owner '{needed}' on this hub; make one: rove hub user {needed}")
        if rows[0]["mirrored"]:
            raise ConfigError(f"'{needed}' is mirrored from {rows[0]['mirrored']}; publish there, and mirror it again")
    expires = None if days is None else (datetime.now(UTC) + timedelta(days=days)).strftime(TIME)
    text = PREFIX + secrets.token_urlsafe(32)
    with database.write() as change:
        change.execute(
            "INSERT INTO tokens (owner, digest, scopes, note, created, expires) VALUES (?, ?, ?, ?, ?, ?)",
            [owner, _digest(text), msgspec.json.encode(scopes).decode(), note, now(), expires],
        )
    return text


def check_scope(scope: str) -> str:
    """A scope, as it is.

    Raises:
        ConfigError: there is no such scope.
    """
    if scope in (READ, ADMIN):
        return scope
    owner, slash, name = scope.removeprefix(UPLOAD).partition("/")
    if not scope.startswith(UPLOAD) or not slash:
        raise ConfigError(f"there is no scope {scope[:80]!r}; {SCOPES}")
    check_owner(owner)
    if name != "*":
        check_name(name)
    return scope


def access_of(database: Database, text: str) -> Access:
    """What a token allows.

    Raises:
        Refused: it is none of this hub's, has expired or was revoked.
    """
    if len(text) > LONGEST_TOKEN or not text.startswith(PREFIX):
        raise Refused(401, f"this is no token of a hub: one begins with '{PREFIX}'; make one: rove hub token OWNER")
    rows = database.ask("SELECT owner, scopes, expires, revoked FROM tokens WHERE digest = ?", [_digest(text)])
    if not rows:
        raise Refused(401, "this hub does not know this token; make one on its machine: rove hub token OWNER")
    [(owner, scopes, expires, revoked)] = rows
    if revoked is not None:
        raise Refused(401, f"this token was revoked ({revoked}); make a new one: rove hub token {owner}")
    if expires is not None and expires <= now():
        raise Refused(401, f"this token has expired ({expires}); make a new one: rove hub token {owner}")
    return Access(owner, _scopes(scopes))


def tokens(database: Database, owner: str | None = None) -> list[Token]:
    """The tokens of an owner, or of all, oldest first; their texts are known to nobody."""
    rows = database.ask(
        "SELECT id, owner, scopes, note, created, expires, revoked FROM tokens WHERE ? IN (owner, '') ORDER BY id",
        [owner or ""],
    )
    return [Token(row["id"], row["owner"], _scopes(row["scopes"]), *row[3:]) for row in rows]


def revoke(database: Database, id: int) -> Token:
    """Make a token good for nothing, from now on.

    Raises:
        ConfigError: there is none of that number.
    """
    with database.write() as change:
        change.execute("UPDATE tokens SET revoked = ? WHERE id = ? AND revoked IS NULL", [now(), id])
    for token in tokens(database):
        if token.id == id:
            return token
    raise ConfigError(f"there is no token {id}; list them: rove hub token --list")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _scopes(text: Any) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])
