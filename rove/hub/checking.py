"""What a checker does: it looks at an upload without running anything of it, in a process of its own.

A hostile archive can cost it time, memory or its life; the hub sets limits to the first two, and goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rove.errors import PackageError
from rove.hub.archives import check_package
from rove.hub.manifest import Manifest, read_manifest
from rove.hub.texts import active

PARTS = {"manifest": "manifest.json", "signature": "manifest.sig", "readme": "README.md"}
"""Parts of an upload whose files have the same name in every version."""


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
        """
        folder = Path(draft)
        content = (folder / "manifest").read_bytes()
        manifest = read_manifest(content)
        if (manifest.name, manifest.version) != (name, version):
            raise PackageError(
                f"the manifest is of {manifest.name} {manifest.version}, the upload is to {owner}/{name} {version}; "
                "build the package and push it again"
            )
        check_texts(manifest)
        check_signature(content, folder / "signature", owner, keys)
        source = folder / "source"
        wheel = check_package(manifest, folder / "wheel", source if source.exists() else None)
        readme = folder / "readme"
        if not readme.exists() and wheel.readme:
            readme.write_text(wheel.readme, encoding="utf-8")
        if readme.exists():
            check_readme(readme)
        return list(self._named(folder, manifest))

    def _named(self, folder: Path, manifest: Manifest) -> Iterator[dict[str, Any]]:
        names = PARTS | {file.kind: file.filename for file in manifest.files}
        for part in sorted(file.name for file in folder.iterdir()):
            content = folder / part
            with content.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            size = content.stat().st_size
            content.rename(folder / names[part])
            yield {"filename": names[part], "kind": part, "sha256": sha256, "size": size}


def check_texts(manifest: Manifest) -> None:
    """Refuse what a browser would act on, wherever it stands: pages escape it, but other programs read manifests, too.

    Raises:
        PackageError: there is some.
    """
    for field, value in msgspec.to_builtins(manifest).items():
        found = active(msgspec.json.encode(value).decode())
        if found:
            raise PackageError(f"the manifest's {field} has {found!r}, which a browser would act on; write plain text")


def check_signature(manifest: bytes, file: Path, owner: str, keys: list[str]) -> None:
    """Check that a manifest is signed, if it is, and that it is where it must be.

    Raises:
        PackageError: it is not signed, or not by whom it should be.
        ConfigError: this machine cannot check signatures.
    """
    if not file.exists():
        if keys:
            raise PackageError(
                f"'{owner}' has keys on this hub, so every upload is to be signed; sign it: rove build --sign"
            )
        return
    from rove.hub import signing  # needs the extra `hub`, where there is a signature at all

    signing.check_signature(manifest, file.read_bytes(), keys or None)


def check_readme(file: Path) -> None:
    """Check that it is text.

    Raises:
        PackageError: it is not.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PackageError(f"the README is not UTF-8: {error}") from None
    if "\0" in text:
        raise PackageError("the README has zero bytes; expected text")
