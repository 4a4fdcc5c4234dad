"""Signatures of manifests: Ed25519, detached, over the manifest's bytes, and so over the hashes of the files that it names."""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rove.core.errors import ConfigError, PackageError
from rove.hub.package.manifest import canonical
from rove.hub.user_paths import config_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "signing.key"
PUBLIC_BYTES, SIGNATURE_BYTES = 32, 64


class Signature(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What manifest.sig holds, as JSON."""

    key: str
    """The public key: its 32 bytes in base64."""
    signature: str
    """Its 64 bytes in base64."""


def key_file() -> Path:
    """Where this user's key is: `$XDG_CONFIG_HOME/rove/signing.key`."""
    return config_folder() / KEY_FILE


def make_key(file: Path | None = None) -> str:
    """Make a key that nobody else can read, and return its public half.

    Args:
        file: default: `key_file()`.

    Raises:
        ConfigError: there is one already, or cryptography is not installed.
    """
    ed25519, serialization = _cryptography()
    file = file or key_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ed25519.Ed25519PrivateKey.generate()
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(draft, file)  # whole, and never over another key
    except FileExistsError:
        raise ConfigError(
            f"{file} exists already; packages are signed with it. To begin a new one move it away, and tell your hub the new key"
        ) from None
    finally:
        draft.unlink(missing_ok=True)
    return public_key(key)


def load_key(file: Path | None = None) -> Ed25519PrivateKey:
    """The key of a file; by default of `key_file()`.

    Raises:
        ConfigError: there is none, others may read it, it holds no Ed25519 key, or cryptography is not installed.
    """
    ed25519, serialization = _cryptography()
    file = file or key_file()
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            content = stream.read(1 << 16)
    except FileNotFoundError:
        raise ConfigError(f"there is no key to sign with in {file}; make one: rove hub key") from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"others may read the key {file} (its mode is {stat.S_IMODE(mode):o}); run chmod 600 {file}")
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{file} holds no key that can be read: {error}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ConfigError(f"{file} holds a key of another kind; expected Ed25519, as rove hub key makes")
    return key


def public_key(key: Ed25519PrivateKey) -> str:
    """The public half of a key, as others know it: base64."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def sign(content: bytes, key: Ed25519PrivateKey) -> bytes:
    """The content of manifest.sig for the bytes of a manifest. The same key and bytes always give the same."""
    signature = base64.b64encode(key.sign(content)).decode()
    return canonical(msgspec.to_builtins(Signature(key=public_key(key), signature=signature)))


def check_signature(content: bytes, signature: bytes, keys: Collection[str] | None = None) -> str:
    """Check that a manifest's bytes are what somebody has signed. Returns the public key.

    Args:
        content: of manifest.json.
        signature: of manifest.sig.
        keys: public keys that may sign it. Default: any; that says only that whoever has that key has signed it.

    Raises:
        PackageError: it is no signature, is of other bytes, or by another key.
        ConfigError: cryptography is not installed.
    """
    ed25519, _ = _cryptography()
    from cryptography.exceptions import InvalidSignature

    try:
        said = msgspec.json.decode(signature, type=Signature)
        public, signed = _bytes(said.key, PUBLIC_BYTES), _bytes(said.signature, SIGNATURE_BYTES)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise PackageError(f"manifest.sig is no signature that can be read: {error}") from None
    if keys is not None and said.key not in keys:
        raise PackageError(
            f"the manifest is signed by the key {said.key}, which is none of its owner's "
            f"({', '.join(keys) or 'there are none'}); "
            "do not install it unless the owner says that the key is new"
        )
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signed, content)
    except InvalidSignature:
        raise PackageError(
            f"the manifest is not the one that {said.key} has signed: manifest.json or manifest.sig was changed"
        ) from None
    return said.key


def _bytes(text: str, size: int) -> bytes:
    content = base64.b64decode(text, validate=True)
    if len(content) != size or base64.b64encode(content).decode() != text:
        raise ValueError(f"expected {size} bytes in base64, got {text[:100]!r}")
    return content


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ConfigError("signatures need cryptography; install rove's hub extra: pip install 'rove[hub]'") from None
    return ed25519, serialization
