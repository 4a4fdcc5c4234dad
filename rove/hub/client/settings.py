"""Address and token of the hub to use, and the trusted signing keys of owners.

The first key seen for an owner is saved, and later versions must use the same key.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from rove.core.config import read_toml
from rove.core.errors import ConfigError, TrustError
from rove.core.plain import JsonObject
from rove.hub.package import signing
from rove.utils.files import atomic_write, config_folder

HUB_VAR, TOKEN_VAR = "ROVE_HUB", "ROVE_HUB_TOKEN"
SETTINGS, KEYS = "hub.toml", "known_keys.toml"
"""Files in the user's configuration folder."""


def resolve_hub(given: str | None = None) -> str | None:
    """Return the address of the hub: `given`, else `$ROVE_HUB`, else the one saved by `rove hub login`, else None."""
    where = given or os.environ.get(HUB_VAR, "").strip() or _content(SETTINGS).get("hub")
    return None if where is None else normalize_address(str(where))


def require_hub(given: str | None = None) -> str:
    """Return the address of the hub as `resolve_hub` does, but require one."""
    where = resolve_hub(given)
    if where is None:
        raise ConfigError(
            f"no hub is configured: add --hub URL_OR_FOLDER, set {HUB_VAR}, or run `rove hub login URL_OR_FOLDER`. "
            "Start your own with `rove hub serve`"
        )
    return where


def require_server(given: str | None = None) -> str:
    """Return the address of a hub that accepts uploads."""
    where = require_hub(given)
    if not is_url(where):
        raise ConfigError(f"the hub {where} is a read-only folder; start `rove hub serve` and add --hub URL")
    return where


def token_for(where: str, given: str | None = None) -> str | None:
    """Return the token for a hub: `$ROVE_HUB_TOKEN` for the user's own hub (see `resolve_hub`), else the saved one.

    The variable's token is not sent to any other hub, because an untrusted lock file can name any address.

    `given` is the hub that the user named in the command, if any.
    """
    token = os.environ.get(TOKEN_VAR, "").strip()
    if token and resolve_hub(given) == normalize_address(where):
        return token
    tokens = _content(SETTINGS).get("tokens", {})
    return tokens.get(normalize_address(where)) if isinstance(tokens, dict) else None


def save_hub(where: str, token: str | None) -> Path:
    """Save a hub as the default with its token, in a file that only the user can read; return the file."""
    content = _content(SETTINGS)
    content["hub"] = normalize_address(where)
    if token is not None:
        content["tokens"] = {**content.get("tokens", {}), normalize_address(where): token}
    file = config_folder() / SETTINGS
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # created with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(tomli_w.dumps(content))
        os.replace(draft, file)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return file


def normalize_address(where: str) -> str:
    """Normalize a hub's address: a URL without trailing slash, or an absolute path."""
    where = where.strip()
    if is_url(where):
        return where.rstrip("/")
    return str(Path(where.removeprefix("file://")).expanduser().resolve())


def is_url(where: str) -> bool:
    """Return whether an address is an HTTP URL; anything else is a folder."""
    return where.lower().startswith(("http://", "https://"))


def _content(name: str) -> JsonObject:
    file = config_folder() / name
    return read_toml(file) if file.is_file() else {}


def known_key(hub: str, owner: str) -> str | None:
    """Return the saved public key of an owner on a hub, or None."""
    return _content(KEYS).get(normalize_address(hub), {}).get(owner)


def remember_key(hub: str, owner: str, key: str) -> None:
    """Save an owner's public key."""
    content = _content(KEYS)
    content.setdefault(normalize_address(hub), {})[owner] = key
    config_folder().mkdir(parents=True, exist_ok=True)
    atomic_write(config_folder() / KEYS, tomli_w.dumps(content).encode())


def check_owner_signature(
    hub: str,
    owner: str,
    manifest: bytes,
    signature: bytes | None,
    listed: Sequence[str] = (),
    trusted: str | None = None,
) -> str | None:
    """Verify the signature of a manifest and return its key; None if the owner has never signed a package.

    `listed` are the owner's keys in the hub's index; `trusted` is a new key of the owner that the user confirmed.
    """
    known = trusted or known_key(hub, owner)
    if signature is None:
        if known is not None or listed:
            raise TrustError(
                f"this version is not signed, but '{owner}' signs packages (key {fingerprint(known or listed[0])}); it may not "
                "be from the owner; installation was cancelled. Ask the owner"
            )
        return None
    key = signing.check_signature(manifest, signature)
    if known is not None and key != known:
        raise TrustError(
            f"this version is signed with the key {fingerprint(key)}; the saved key of '{owner}' on {hub} is "
            f"{fingerprint(known)}. Either the owner has a new key, or the version is not from the owner; installation was "
            f"cancelled. Ask the owner over another channel; if the key is new, add --trust-key {key}"
        )
    if known is None and listed and key not in listed:
        raise TrustError(
            f"this version is signed with the key {fingerprint(key)}, which is not one of the keys of '{owner}' on the hub "
            f"({', '.join(map(fingerprint, listed))}); installation was cancelled. Ask the owner"
        )
    return key


def fingerprint(key: str) -> str:
    """Return a short fingerprint of a key."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]
