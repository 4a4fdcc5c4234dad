"""A package in a folder, as `rove build` leaves it and a hub keeps it: manifest, perhaps a signature, wheel, source archive."""

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
"""Parts of an upload whose files have the same name in every version."""


@dataclass(frozen=True)
class Package:
    """A package that holds what its manifest promises."""

    manifest: Manifest
    wheel: Wheel
    signed_by: str | None
    """The public key of its signature; None where it has none."""


def verify(folder: Path, keys: Collection[str] | None = None) -> Package:
    """Check everything about a package, without running anything of it.

    Args:
        keys: public keys, one of which must have signed it. Default: it need not be signed, but a signature must be right.

    Raises:
        PackageError: a file is missing, is not the one that the manifest promises, or is not what it should be; the signature is
            missing, wrong, or somebody else's.
    """
    content = _read(folder / MANIFEST, limits.MANIFEST)
    signed_by = None
    if (folder / SIGNATURE).exists():
        signed_by = check_signature(content, _read(folder / SIGNATURE, limits.SIGNATURE), keys)
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
            raise PackageError(f"{file} is missing; the manifest names it")
    assert archives[0] is not None
    wheel = check_package(manifest, archives[0], archives[1])
    readme = folder / README
    if readme.exists() and readme.read_bytes() != wheel.readme.encode():
        raise PackageError(f"{readme} is not the README that the wheel holds; delete it, or build the package again")
    return Package(manifest, wheel, signed_by)


def _read(file: Path, most: int) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(most + 1)
    except FileNotFoundError:
        raise PackageError(f"{file} is missing; give a folder that rove build has made") from None
    if len(content) > most:
        raise PackageError(f"{file} has more than {most:,} bytes")
    return content
