"""Trusted signing keys: the first key seen for an owner is saved, and later versions must use the same key."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from rove.core.config import read_toml
from rove.core.errors import TrustError
from rove.hub.client.settings import normal
from rove.hub.package import signing
from rove.utils.files import atomic_write, config_folder

FILE = "known_keys.toml"


def known_key(hub: str, owner: str) -> str | None:
    """Return the saved public key of an owner on a hub, or None."""
    file = _file()
    owners = read_toml(file).get(normal(hub), {}) if file.is_file() else {}
    return owners.get(owner)


def remember(hub: str, owner: str, key: str) -> None:
    """Save an owner's public key."""
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
    """Verify the signature of a manifest and return its key; None if the owner has never signed a package.

    Args:
        hub: Address of the hub.
        owner: Owner of the package.
        manifest: Bytes of the manifest.
        signature: Bytes of manifest.sig, or None.
        listed: The owner's keys in the hub's index.
        trusted: A new key of the owner that the user confirmed.

    Raises:
        TrustError: The signature is missing, or the key is not the owner's.
        PackageError: The signature is invalid.
        ConfigError: cryptography is not installed.
    """
    known = trusted or known_key(hub, owner)
    if signature is None:
        if known is not None or listed:
            raise TrustError(
                f"this version is not signed, but '{owner}' signs packages (key {short(known or listed[0])}); it may not be from "
                "the owner; installation was cancelled. Ask the owner"
            )
        return None
    key = signing.check_signature(manifest, signature)
    if known is not None and key != known:
        raise TrustError(
            f"this version is signed with the key {short(key)}; the saved key of '{owner}' on {hub} is {short(known)}. Either "
            "the owner has a new key, or the version is not from the owner; installation was cancelled. Ask the owner over "
            f"another channel; if the key is new, add --trust-key {key}"
        )
    if known is None and listed and key not in listed:
        raise TrustError(
            f"this version is signed with the key {short(key)}, which is not one of the keys of '{owner}' on the hub "
            f"({', '.join(map(short, listed))}); installation was cancelled. Ask the owner"
        )
    return key


def short(key: str) -> str:
    """Return a short fingerprint of a key."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _file() -> Path:
    return config_folder() / FILE
