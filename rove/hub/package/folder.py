"""A package folder, as `rove build` writes it and a hub stores it: manifest, optional signature, wheel, source archive."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from rove.core.errors import PackageError
from rove.hub.package import limits
from rove.hub.package.archives import Wheel, check_package
from rove.hub.package.manifest import Manifest, read_manifest
from rove.hub.package.signing import check_signature

MANIFEST, SIGNATURE, README = "manifest.json", "manifest.sig", "README.md"
PARTS = {"manifest": MANIFEST, "signature": SIGNATURE, "readme": README}
"""Parts of an upload whose file names are the same in every version."""


@dataclass(frozen=True)
class Package:
    """A package whose files match its manifest."""

    manifest: Manifest
    wheel: Wheel
    signed_by: str | None
    """Public key of its signature; None if unsigned."""


def verify(folder: Path, keys: Collection[str] | None = None) -> Package:
    """Check a package completely, without running its code.

    Args:
        folder: Folder of the package.
        keys: Public keys, one of which must have signed it. By default a signature is optional, but must be valid.

    Raises:
        PackageError: A file is missing, invalid or differs from the manifest; or the signature is missing, invalid or by
            another key.
    """
    content = _read(folder / MANIFEST, limits.MAX_MANIFEST_BYTES)
    signed_by = None
    if (folder / SIGNATURE).exists():
        signed_by = check_signature(content, _read(folder / SIGNATURE, limits.MAX_SIGNATURE_BYTES), keys)
    elif keys is not None:
        raise PackageError(
            f"{folder} is not signed ({SIGNATURE} is missing); expected a signature by one of {len(keys)} keys"
        )
    manifest = read_manifest(content)
    archives = [
        None if entry is None else folder / entry.filename for entry in (manifest.wheel, manifest.source_archive)
    ]
    for file in archives:
        if file is not None and not file.is_file():
            raise PackageError(f"{file} is missing, but the manifest lists it")
    assert archives[0] is not None
    wheel = check_package(manifest, archives[0], archives[1])
    readme = folder / README
    if readme.exists() and readme.read_bytes() != wheel.readme.encode():
        raise PackageError(f"{readme} differs from the README in the wheel; delete it, or build the package again")
    return Package(manifest, wheel, signed_by)


def _read(file: Path, max_bytes: int) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except FileNotFoundError:
        raise PackageError(f"{file} is missing; give a folder made by rove build") from None
    if len(content) > max_bytes:
        raise PackageError(f"{file} has more than {max_bytes:,} bytes")
    return content
