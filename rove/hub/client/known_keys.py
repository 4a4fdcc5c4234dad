"""Whose signatures are believed: an owner's key is noted when it is first met on a hub, and from then on no other will do."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from rove.core.config import read_toml
from rove.core.errors import TrustError
from rove.hub.client.settings import normal
from rove.hub.package import signing
from rove.hub.user_paths import config_folder
from rove.utils.files import atomic_write

FILE = "known_keys.toml"


def known_key(hub: str, owner: str) -> str | None:
    """The public key that an owner of a hub was first met with; None where all that was met was not signed."""
    file = _file()
    owners = read_toml(file).get(normal(hub), {}) if file.is_file() else {}
    return owners.get(owner)


def remember(hub: str, owner: str, key: str) -> None:
    """Note an owner's public key."""
    file = _file()
    content = read_toml(file) if file.is_file() else {}
    content.setdefault(normal(hub), {})[owner] = key
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(file, tomli_w.dumps(content).encode())


def check_signature(
    hub: str,
    owner: str,
    manifest: bytes,
    signature: bytes | None,
    listed: Sequence[str] = (),
    trusted: str | None = None,
) -> str | None:
    """The key that signed a manifest; None where it is not signed and its owner has never signed anything met here.

    Args:
        listed: the keys that the hub names for the owner.
        trusted: the owner's new key, as the user has it from the owner.

    Raises:
        TrustError: the signature is missing, or the key is not the owner's.
        PackageError: the signature is false.
        ConfigError: cryptography is not installed.
    """
    known = trusted or known_key(hub, owner)
    if signature is None:
        if known is not None or listed:
            raise TrustError(
                f"this version is not signed, though '{owner}' signs (key {short(known or listed[0])}): somebody else may have "
                "published it; nothing was installed. Ask the owner"
            )
        return None
    key = signing.check_signature(manifest, signature)
    if known is not None and key != known:
        raise TrustError(
            f"this version is signed with the key {short(key)}; '{owner}' of {hub} was met with {short(known)}. Either the "
            "owner has a new key, or somebody else has published this; nothing was installed. Ask the owner on another "
            f"way; if the key is new: --trust-key {key}"
        )
    if known is None and listed and key not in listed:
        raise TrustError(
            f"this version is signed with the key {short(key)}, which is not among those that the hub has for '{owner}' "
            f"({', '.join(map(short, listed))}); nothing was installed. Ask the owner"
        )
    return key


def short(key: str) -> str:
    """A key in few characters, to compare by eye."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _file() -> Path:
    return config_folder() / FILE
