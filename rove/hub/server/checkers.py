"""Processes that check packages: a hostile one costs its checker's life at worst, not the hub's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from rove.core.errors import ConfigError, PackageError, RemoteError, WorkerError
from rove.hub.server.errors import Refused
from rove.hub.server.store import Kept
from rove.workers import Workers

SECONDS = 60.0
MEMORY = 1 << 30
"""What one check may take."""
MOST = 2
"""At once: each can take a core."""
TOO_MUCH = "this package cannot be checked: looking at it took too much time or memory"


class Checkers:
    """Checks packages beside the event loop, see `rove.hub.server.checking`."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("checking.py")
        self._workers = Workers(program, max_workers=MOST, memory_bytes=MEMORY, name="rove-hub-check")

    async def check(self, draft: Path, owner: str, name: str, version: str, keys: Sequence[str]) -> list[Kept]:
        """Check a package and give its files their names; arguments as those of `rove.hub.server.checking.Session.check`.

        Raises:
            Refused: something is not right.
        """
        asked = {"draft": str(draft), "owner": owner, "name": name, "version": version, "keys": list(keys)}
        try:
            async with self._workers.acquire() as worker:
                kept = await worker.call("check", SECONDS, **asked)
        except RemoteError as error:
            said = str(error).partition(": ")[2].replace(f"{draft}/", "")
            if error.type == PackageError.__name__:
                raise Refused(422, said) from error
            if error.type == ConfigError.__name__:
                raise Refused(501, f"this hub cannot check it: {said}") from error
            if error.type in (RecursionError.__name__, MemoryError.__name__):
                raise Refused(422, TOO_MUCH) from error
            raise
        except WorkerError as error:
            raise Refused(422, TOO_MUCH) from error
        return msgspec.convert(kept, list[Kept])

    async def close(self) -> None:
        """End them."""
        await self._workers.aclose()
