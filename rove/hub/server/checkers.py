"""Worker processes that check uploads, so that a hostile package can at worst crash its worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from rove.core.errors import ConfigError, PackageError, RejectedError, RemoteError, WorkerError
from rove.hub.server.store import StoredFile
from rove.workers import Workers

CHECK_TIMEOUT_S = 60.0
MAX_MEMORY_BYTES = 1 << 30
"""Memory limit of one check."""
MAX_CHECKERS = 2
"""Number of concurrent checks; each can use a whole core."""
TOO_EXPENSIVE = "this package cannot be checked: the check exceeded its time or memory limit"


class Checkers:
    """Runs package checks in worker processes, see `rove.hub.server.checking`."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("checking.py")
        self._workers = Workers(program, max_workers=MAX_CHECKERS, memory_bytes=MAX_MEMORY_BYTES, name="rove-hub-check")

    async def check(self, draft: Path, owner: str, name: str, version: str, keys: Sequence[str]) -> list[StoredFile]:
        """Check a package and rename its files; for the arguments see `rove.hub.server.checking.Session.check`.

        Raises:
            RejectedError: The package is invalid.
        """
        arguments = {"draft": str(draft), "owner": owner, "name": name, "version": version, "keys": list(keys)}
        try:
            async with self._workers.acquire() as worker:
                kept = await worker.call("check", CHECK_TIMEOUT_S, **arguments)
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
        return msgspec.convert(kept, list[StoredFile])

    async def close(self) -> None:
        """Stop the worker processes."""
        await self._workers.aclose()
