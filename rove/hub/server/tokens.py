"""API tokens and their scopes. Only a token's hash is stored; the token itself is shown once, when it is created."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from rove.core.checks import checked
from rove.core.errors import ConfigError, RejectedError
from rove.hub.package.limits import TokenDays
from rove.hub.package.names import check_name, check_owner
from rove.hub.server.database import TIME, Database, now

PREFIX = "rove_"
"""Prefix of tokens, recognizable by people and secret scanners."""
MAX_TOKEN_CHARS = 200
DEFAULT_DAYS = 365
MAX_NOTE_CHARS = 100
READ, UPLOAD, ADMIN = "read", "upload:", "admin"
SCOPES = "expected 'read', 'upload:OWNER/NAME', 'upload:OWNER/*' or 'admin'"


class Access(NamedTuple):
    """Permissions of a request; by default anonymous, with access to public environments only.

    Checks raise `RejectedError`.
    """

    owner: str | None = None
    scopes: tuple[str, ...] = ()

    @property
    def reads(self) -> str | None:
        """Owner whose private environments may be read, or None."""
        return self.owner if READ in self.scopes or ADMIN in self.scopes else None

    def check_upload(self, owner: str, name: str) -> None:
        """Check that OWNER/NAME may be changed."""
        accepted = {f"{UPLOAD}{owner}/{name}", f"{UPLOAD}{owner}/*"}
        if accepted.isdisjoint(self.scopes):
            self.check_admin(owner, f"upload to {owner}/{name}", f"{UPLOAD}{owner}/{name}")

    def check_admin(self, owner: str, action: str, scope: str = ADMIN) -> None:
        """Check that the request may do `action`, which needs the right to administer an owner's environments; errors name
        `scope`.
        """
        if self.owner is None:
            raise RejectedError(401, f"a token is required to {action}; send it as 'Authorization: Bearer rove_…'")
        if self.owner != owner or ADMIN not in self.scopes:
            raise RejectedError(
                403, f"this token of '{self.owner}' may not {action}; use a token with the scope '{scope}'"
            )


class Token(NamedTuple):
    """A stored token, without its secret."""

    id: int
    owner: str
    scopes: tuple[str, ...]
    note: str
    created: str
    expires: str | None
    revoked: str | None


def make_token(
    database: Database, owner: str, scopes: Sequence[str] = (), days: float | None = DEFAULT_DAYS, note: str = ""
) -> str:
    """Create a token for an existing owner and return it.

    Args:
        scopes: Scopes (default: read the owner's private environments and upload for the owner).
        days: Lifetime in days; None never expires.
    """
    check_owner(owner)
    scopes = tuple(dict.fromkeys(check_scope(scope) for scope in scopes)) or (READ, f"{UPLOAD}{owner}/*")
    checked("days", days, TokenDays | None)
    if len(note) > MAX_NOTE_CHARS or not note.isprintable():
        raise ConfigError(f"the token's note must have at most {MAX_NOTE_CHARS} printable characters")
    for needed in [owner, *(scope.removeprefix(UPLOAD).partition("/")[0] for scope in scopes if UPLOAD in scope)]:
        if not database.query("SELECT 1 FROM owners WHERE owner = ?", [needed]):
            raise ConfigError(f"this hub has no owner '{needed}'; create it with rove hub user {needed}")
    expires = None if days is None else (datetime.now(UTC) + timedelta(days=days)).strftime(TIME)
    text = PREFIX + secrets.token_urlsafe(32)
    with database.write() as change:
        change.execute(
            "INSERT INTO tokens (owner, digest, scopes, note, created, expires) VALUES (?, ?, ?, ?, ?, ?)",
            [owner, _digest(text), msgspec.json.encode(scopes).decode(), note, now(), expires],
        )
    return text


def check_scope(scope: str) -> str:
    """Check a scope and return it."""
    if scope in (READ, ADMIN):
        return scope
    owner, slash, name = scope.removeprefix(UPLOAD).partition("/")
    if not scope.startswith(UPLOAD) or not slash:
        raise ConfigError(f"unknown scope {scope[:80]!r}; {SCOPES}")
    check_owner(owner)
    if name != "*":
        check_name(name)
    return scope


def access_of(database: Database, text: str) -> Access:
    """Return the permissions of a token."""
    if len(text) > MAX_TOKEN_CHARS or not text.startswith(PREFIX):
        raise RejectedError(
            401, f"invalid token; expected one that begins with '{PREFIX}', created by rove hub token OWNER"
        )
    rows = database.query("SELECT owner, scopes, expires, revoked FROM tokens WHERE digest = ?", [_digest(text)])
    if not rows:
        raise RejectedError(401, "unknown token; create one on the hub's machine with rove hub token OWNER")
    [(owner, scopes, expires, revoked)] = rows
    is_expired = expires is not None and expires <= now()
    if revoked is not None or is_expired:
        reason = f"has expired ({expires})" if revoked is None else f"was revoked ({revoked})"
        raise RejectedError(401, f"this token {reason}; create a new one with rove hub token {owner}")
    return Access(owner, _scopes(scopes))


def tokens(database: Database, owner: str | None = None) -> list[Token]:
    """Return the tokens of an owner (default: all owners), oldest first."""
    rows = database.query(
        "SELECT id, owner, scopes, note, created, expires, revoked FROM tokens WHERE ? IN (owner, '') ORDER BY id",
        [owner or ""],
    )
    return [Token(row["id"], row["owner"], _scopes(row["scopes"]), *row[3:]) for row in rows]


def revoke(database: Database, id: int) -> Token:
    """Revoke a token."""
    with database.write() as change:
        change.execute("UPDATE tokens SET revoked = ? WHERE id = ? AND revoked IS NULL", [now(), id])
    for token in tokens(database):
        if token.id == id:
            return token
    raise ConfigError(f"there is no token {id}; list tokens with rove hub token --list")


def _digest(text: str) -> bytes:
    # A token has 256 random bits: unlike a password, it needs no slow hash.
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _scopes(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])
