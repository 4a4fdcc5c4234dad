"""Check uploads in worker processes without running their code.

A hostile archive can exhaust its worker's time or memory, or crash it; the hub limits both and continues. This module is also
the workers' program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rove.core.errors import ConfigError, PackageError, RejectedError, RemoteError, WorkerError
from rove.core.plain import JsonObject
from rove.hub.package.archives import PARTS, README, verify
from rove.hub.package.manifest import find_markup, read_manifest
from rove.hub.server.store import StoredFile
from rove.utils.systems import rename
from rove.workers import Workers


class Session:
    """The worker's side: checks uploads, one at a time."""

    def check(self, draft: str, owner: str, name: str, version: str, keys: list[str]) -> list[JsonObject]:
        """Check an upload, rename its files to their final names, and return the fields of a `StoredFile` per file.

        Args:
            keys: The owner's public keys; if there are any, one of them must have signed the manifest.
        """
        folder = Path(draft)
        content = (folder / "manifest").read_bytes()
        manifest = read_manifest(content)
        if (manifest.name, manifest.version) != (name, version):
            raise PackageError(
                f"the manifest describes {manifest.name} {manifest.version}, but the upload is for {owner}/{name} {version}; "
                "build the package and push it again"
            )
        check_no_markup(msgspec.json.decode(content))
        parts = {part.name for part in folder.iterdir()}
        names = {file.kind: file.filename for file in manifest.files} | PARTS
        if keys and "signature" not in parts:
            raise PackageError(
                f"'{owner}' has signing keys on this hub, so every upload must be signed; push it with --sign"
            )
        for part in parts:
            if part not in names:
                raise PackageError(f"this upload contains a {part} archive that the manifest does not list")
            rename(folder / part, folder / names[part])
        package = verify(folder, keys or None)
        if package.wheel.readme and "readme" not in parts:
            (folder / README).write_text(package.wheel.readme, encoding="utf-8", newline="")
        stored = []
        for kind, filename in names.items():
            if (folder / filename).exists():
                content = (folder / filename).read_bytes()
                sha256 = hashlib.sha256(content).hexdigest()
                stored.append({"filename": filename, "kind": kind, "sha256": sha256, "size": len(content)})
        return stored


def check_no_markup(manifest: Mapping[str, object]) -> None:
    """Refuse active markup in any field: the hub's pages escape it, but other programs that show manifests may not."""
    for field, value in manifest.items():
        markup = find_markup(field) or find_markup(msgspec.json.encode(value).decode())
        if markup:
            raise PackageError(
                f"the manifest's {field[:40]!r} has {markup!r}, which a browser would execute; write plain text"
            )


CHECK_TIMEOUT_S = 60.0
MAX_MEMORY_BYTES = 1 << 30
"""Memory limit of one check."""
MAX_CHECKERS = 2
"""Maximum number of concurrent checks; each can use a whole core."""
TOO_EXPENSIVE = "this package cannot be checked: the check exceeded its time or memory limit"


class Checkers:
    """Runs package checks in worker processes, each with a `Session`."""

    def __init__(self) -> None:
        self._workers = Workers(
            Path(__file__), max_workers=MAX_CHECKERS, memory_bytes=MAX_MEMORY_BYTES, name="rove-hub-check"
        )

    async def check(self, draft: Path, owner: str, name: str, version: str, keys: Sequence[str]) -> list[StoredFile]:
        """Check a package and rename its files; see `Session.check` for the arguments."""
        arguments = {"draft": str(draft), "owner": owner, "name": name, "version": version}
        try:
            async with self._workers.acquire() as worker:
                stored_files = await worker.call("check", CHECK_TIMEOUT_S, **arguments, keys=list(keys))
        except RemoteError as error:
            message = str(error).partition(": ")[2].replace(f"{draft}/", "")
            if error.type == PackageError.__name__:
                raise RejectedError(422, message) from error
            if error.type == ConfigError.__name__:
                raise RejectedError(501, f"this hub cannot check it: {message}") from error
            if error.type in (RecursionError.__name__, MemoryError.__name__):
                raise RejectedError(422, TOO_EXPENSIVE) from error
            raise
        except WorkerError as error:
            raise RejectedError(422, TOO_EXPENSIVE) from error
        return msgspec.convert(stored_files, list[StoredFile])

    async def close(self) -> None:
        """Stop the worker processes."""
        await self._workers.aclose()
