"""What a checker does: it looks at an upload without running anything of it, in a process of its own.

A hostile archive can cost it time, memory or its life; the hub sets limits to the first two, and goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rove.core.errors import PackageError
from rove.hub.package.folder import PARTS, README, verify
from rove.hub.package.manifest import read_manifest
from rove.hub.package.texts import active


class Session:
    """Checks, one upload after another."""

    def check(self, draft: str, owner: str, name: str, version: str, keys: list[str]) -> list[dict[str, Any]]:
        """Check an upload and give its files their names.

        Args:
            draft: folder with its parts: manifest, wheel, perhaps source, signature and readme.
            owner: whose it is to be.
            name: what it is uploaded as.
            version: likewise.
            keys: of the owner; one of them has to have signed it, if there are any.

        Returns:
            the files, as `Kept` has them.

        Raises:
            PackageError: something is not right.
            ConfigError: it is signed, and this machine cannot check signatures.
        """
        folder = Path(draft)
        content = (folder / "manifest").read_bytes()
        manifest = read_manifest(content)
        if (manifest.name, manifest.version) != (name, version):
            raise PackageError(
                f"the manifest is of {manifest.name} {manifest.version}, the upload is to {owner}/{name} {version}; "
                "build the package and push it again"
            )
        check_texts(msgspec.json.decode(content))
        parts = {part.name for part in folder.iterdir()}
        names = {file.kind: file.filename for file in manifest.files} | PARTS
        if keys and "signature" not in parts:
            raise PackageError(
                f"'{owner}' has keys on this hub, so that every upload has to be signed; build it with --sign"
            )
        for part in parts:
            if part not in names:
                raise PackageError(f"there is a {part} archive in this upload, which the manifest does not name")
            (folder / part).rename(folder / names[part])
        package = verify(folder, keys or None)
        if package.wheel.readme and "readme" not in parts:
            (folder / README).write_text(package.wheel.readme, encoding="utf-8", newline="")
        return list(_told(folder, names))


def _told(folder: Path, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    for kind, filename in names.items():
        file = folder / filename
        if file.exists():
            with file.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            yield {"filename": filename, "kind": kind, "sha256": sha256, "size": file.stat().st_size}


def check_texts(manifest: Mapping[str, Any]) -> None:
    """Refuse what a browser would act on, wherever it stands: pages escape it, but other programs read manifests, too.

    Raises:
        PackageError: there is some.
    """
    for field, value in manifest.items():
        found = active(field) or active(msgspec.json.encode(value).decode())
        if found:
            raise PackageError(
                f"the manifest's {field[:40]!r} has {found!r}, which a browser would act on; write plain text"
            )
