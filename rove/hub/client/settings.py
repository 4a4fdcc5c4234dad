"""Address and token of the hub to use, and the trusted signing keys of owners.

The first signing key of an owner is saved, and later versions must be signed with the same key.
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
from rove.utils.systems import file_path, rename

HUB_VAR, TOKEN_VAR = "ROVE_HUB", "ROVE_HUB_TOKEN"
SETTINGS, KEYS = "hub.toml", "known_keys.toml"
"""Files in the user's configuration folder."""


def resolve_hub(option: str | None = None) -> str | None:
    """Return the address of the hub: `option`, else `$ROVE_HUB`, else the address saved by `rove hub login`, else None."""
    address = option or os.environ.get(HUB_VAR, "").strip() or _content(SETTINGS).get("hub")
    return None if address is None else normalize_address(str(address))


def require_hub(option: str | None = None) -> str:
    """Return the address of the hub as `resolve_hub` does; raise an error if there is none."""
    address = resolve_hub(option)
    if address is None:
        raise ConfigError(
            f"no hub is configured: add --hub URL_OR_FOLDER, set {HUB_VAR}, or run `rove hub login URL_OR_FOLDER`. "
            "Start your own with `rove hub serve`"
        )
    return address


def require_server(option: str | None = None) -> str:
    """Return the address of a hub that accepts uploads."""
    address = require_hub(option)
    if not is_url(address):
        raise ConfigError(f"the hub {address} is a read-only folder; start `rove hub serve` and add --hub URL")
    return address


def token_for(address: str, option: str | None = None) -> str | None:
    """Return the token for a hub: `$ROVE_HUB_TOKEN` for the user's own hub (see `resolve_hub`), else the saved token.

    The variable's token is not sent to any other hub, because an untrusted lock file can name any address.

    `option` is the hub that the user named in the command, if the user named one.
    """
    token = os.environ.get(TOKEN_VAR, "").strip()
    if token and resolve_hub(option) == normalize_address(address):
        return token
    tokens = _content(SETTINGS).get("tokens", {})
    return tokens.get(normalize_address(address)) if isinstance(tokens, dict) else None


def save_hub(address: str, token: str | None) -> Path:
    """Save a hub as the default with its token, in a file that only the user can read; return the file."""
    content = _content(SETTINGS)
    content["hub"] = normalize_address(address)
    if token is not None:
        content["tokens"] = {**content.get("tokens", {}), normalize_address(address): token}
    file = config_folder() / SETTINGS
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # created with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(tomli_w.dumps(content))
        rename(Path(draft), file)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return file


def normalize_address(address: str) -> str:
    """Normalize a hub's address: a URL without trailing slash, or an absolute path."""
    address = address.strip()
    if is_url(address):
        return address.rstrip("/")
    return str(file_path(address).expanduser().resolve())


def is_url(address: str) -> bool:
    """Return whether an address is an HTTP URL; anything else is a folder."""
    return address.lower().startswith(("http://", "https://"))


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

    `listed` contains the owner's keys in the hub's index; `trusted` is a new key of the owner that the user confirmed.
    """
    expected_key = trusted or known_key(hub, owner)
    if signature is None:
        if expected_key is not None or listed:
            raise TrustError(
                f"this version is not signed, but '{owner}' signs packages (key {fingerprint(expected_key or listed[0])}); "
                "it may not be from the owner; installation was cancelled. Ask the owner"
            )
        return None
    key = signing.check_signature(manifest, signature)
    if expected_key is not None and key != expected_key:
        raise TrustError(
            f"this version is signed with the key {fingerprint(key)}; the saved key of '{owner}' on {hub} is "
            f"{fingerprint(expected_key)}. Either the owner has a new key, or the version is not from the owner; installation "
            f"was cancelled. Ask the owner over another channel; if the key is new, add --trust-key {key}"
        )
    if expected_key is None and listed and key not in listed:
        raise TrustError(
            f"this version is signed with the key {fingerprint(key)}, which is not one of the keys of '{owner}' on the hub "
            f"({', '.join(map(fingerprint, listed))}); installation was cancelled. Ask the owner"
        )
    return key


def fingerprint(key: str) -> str:
    """Return a short fingerprint of a key."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]
