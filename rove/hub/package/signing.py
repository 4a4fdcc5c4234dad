"""Detached Ed25519 signatures of manifests, which contain the hashes of all other files."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rove.core.errors import ConfigError, PackageError
from rove.core.plain import UNREADABLE
from rove.hub.package.manifest import canonical
from rove.utils.files import config_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "signing.key"
PUBLIC_BYTES, SIGNATURE_BYTES = 32, 64


class Signature(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """JSON content of manifest.sig."""

    key: str
    """Public key: 32 bytes in base64."""
    signature: str
    """Signature: 64 bytes in base64."""


def key_file() -> Path:
    """Return the path of this user's key: `$XDG_CONFIG_HOME/rove/signing.key`."""
    return config_folder() / KEY_FILE


def make_key(file: Path | None = None) -> str:
    """Create a private key that only its owner can read, in `file` (default: `key_file()`), and return the public key."""
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
        os.link(draft, file)  # atomic, and never replaces an existing key
    except FileExistsError:
        raise ConfigError(
            f"{file} already exists; to use a new key, move this file away and register the new public key with your hub"
        ) from None
    finally:
        draft.unlink(missing_ok=True)
    return public_key(key)


def load_key(file: Path | None = None) -> Ed25519PrivateKey:
    """Load the private key from a file (default: `key_file()`)."""
    ed25519, serialization = _cryptography()
    file = file or key_file()
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            content = stream.read(1 << 16)
    except FileNotFoundError:
        raise ConfigError(f"no signing key in {file}; create one with rove hub key") from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"other users can read the key {file} (mode {stat.S_IMODE(mode):o}); run chmod 600 {file}")
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{file} does not contain a readable key: {error}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ConfigError(f"{file} is not an Ed25519 key; create one with rove hub key")
    return key


def public_key(key: Ed25519PrivateKey) -> str:
    """Return the public key of a private key, in base64."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def sign(content: bytes, key: Ed25519PrivateKey) -> bytes:
    """Return the content of manifest.sig for the bytes of a manifest. Signing is deterministic."""
    signature = base64.b64encode(key.sign(content)).decode()
    return canonical(msgspec.to_builtins(Signature(key=public_key(key), signature=signature)))


def check_signature(content: bytes, signature: bytes, keys: Collection[str] | None = None) -> str:
    """Check the signature of a manifest and return the public key.

    Args:
        keys: Accepted public keys (default: any key).
    """
    ed25519, _ = _cryptography()
    from cryptography.exceptions import InvalidSignature

    try:
        parsed = msgspec.json.decode(signature, type=Signature)
        public, signed = decode_base64(parsed.key, PUBLIC_BYTES), decode_base64(parsed.signature, SIGNATURE_BYTES)
    except (ValueError, *UNREADABLE) as error:
        raise PackageError(f"manifest.sig cannot be parsed: {error}") from None
    if keys is not None and parsed.key not in keys:
        raise PackageError(
            f"the manifest is signed with the key {parsed.key}, which is not one of the owner's keys "
            f"({', '.join(keys) or 'none'}); do not install it unless the owner confirms a new key"
        )
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signed, content)
    except InvalidSignature:
        raise PackageError(
            f"the signature by {parsed.key} does not match: manifest.json or manifest.sig was modified"
        ) from None
    return parsed.key


def decode_base64(text: str, size: int) -> bytes:
    """Return the `size` bytes of which a text is the base64; raise ValueError if it is not."""
    content = base64.b64decode(text, validate=True)  # its `binascii.Error` is a ValueError
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
