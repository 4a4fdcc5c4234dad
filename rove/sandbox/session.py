"""A session as the host sees it: questions to a supervisor, wherever that runs, and what to do when it does not answer."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import msgspec

from rove.core.errors import ConfigError, SandboxError, SandboxFileError
from rove.sandbox.backend import Functions, Result, SandboxLimits
from rove.sandbox.host_functions import reply_to

START_SECONDS = 60.0
"""For one session to say that it is ready."""
GUARD_SECONDS = 2.0
"""A call is over so long after its time at the latest, should the supervisor itself not answer."""
LENGTH = struct.Struct("<I")
NOTHING: Functions = {}

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class SupervisedSession(ABC):
    """See `Session`. A session that died is made anew by the next call, and the result says that its files are gone.

    Args:
        limits: what it may use.
        on_close: told when it is closed.
    """

    def __init__(self, limits: SandboxLimits, on_close: Callable[[SupervisedSession], None]):
        self.limits, self._on_close = limits, on_close
        self._lock = asyncio.Lock()
        self._streams: Streams | None = None
        self._closed = False

    @abstractmethod
    async def _connect(self) -> Streams:
        """Start the supervisor."""

    @abstractmethod
    async def _disconnect(self) -> str:
        """End it and everything below, if it lives, and wait until all is gone. Why it never lived, if that is so."""

    async def start(self) -> None:
        """Start the session's processes and wait until they are ready.

        Raises:
            ConfigError, SandboxError: see `Backend.open`.
        """
        try:
            self._streams = await self._connect()
            async with asyncio.timeout(START_SECONDS):
                hello = await self._read()
        except BaseException as error:
            reason = await self._end()
            if isinstance(error, (TimeoutError, OSError, EOFError, msgspec.DecodeError)):
                raise SandboxError(f"a sandbox did not start: {reason or error or 'no answer'}") from error
            raise
        if "broken" in hello:
            await self._end()
            raise SandboxError(f"a sandbox did not start:\n{hello['broken']}")

    async def run_python(self, code: str, seconds: float | None = None, functions: Functions | None = None) -> Result:
        """See `Session.run_python`."""
        for name in functions or ():
            if not name.isidentifier():
                raise ConfigError(f"functions has '{name}'; expected names that Python allows")
        request = {"kind": "python", "code": code, "functions": list(functions or ())}
        return await self._run(request, seconds, functions or {})

    async def bash(self, command: str, seconds: float | None = None) -> Result:
        """See `Session.bash`."""
        return await self._run({"kind": "bash", "command": command}, seconds)

    async def put(self, path: str, data: bytes) -> None:
        """See `Session.put`."""
        if len(data) > self.limits.file_bytes:
            raise SandboxFileError(
                f"{path} has {len(data)} bytes; expected at most {self.limits.file_bytes} (file_bytes)"
            )
        await self._file({"kind": "put", "path": path, "data": base64.b64encode(data).decode()})

    async def get(self, path: str) -> bytes:
        """See `Session.get`."""
        return base64.b64decode((await self._file({"kind": "get", "path": path}))["data"])

    async def close(self) -> None:
        """See `Session.close`."""
        self._closed = True
        self._on_close(self)
        await self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, request: dict[str, Any], seconds: float | None, functions: Functions = NOTHING) -> Result:
        seconds = self.limits.seconds if seconds is None else seconds
        if not 0 < seconds < float("inf"):
            raise ConfigError(f"seconds is {seconds}; expected more than 0, and an end")
        answer = await self._call({**request, "seconds": seconds}, seconds, functions)
        if "lost" in answer:
            error = f"the sandbox died: {answer['lost']}"
            return Result(error=error, restarted=True, files_lost=True, timed_out=answer.get("timed_out", False))
        failed = answer.pop("failed", False)
        if failed:
            answer["error"] = answer.pop("value")
        return msgspec.convert(answer, Result)

    async def _file(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = await self._call(request, self.limits.seconds)
        if "lost" in answer:
            raise SandboxError(f"the sandbox died: {answer['lost']}")
        if "error" in answer:
            raise SandboxFileError(answer["error"])
        return answer

    async def _call(self, request: dict[str, Any], seconds: float, functions: Functions = NOTHING) -> dict[str, Any]:
        """One question to the supervisor; {"lost": why} where it did not answer, and the session is dead."""
        async with self._lock:
            if self._closed:
                raise SandboxError("this session is closed")
            if self._streams is None:
                await self.start()
            assert self._streams is not None
            try:
                async with asyncio.timeout(seconds + GUARD_SECONDS) as limit:
                    await self._write(request)
                    while "asked" in (answer := await self._read()):
                        limit.reschedule(None)
                        reply = await reply_to(answer["asked"], functions, self.limits.message_bytes)
                        limit.reschedule(asyncio.get_running_loop().time() + answer["left"] + GUARD_SECONDS)
                        await self._write({"reply": reply})
                if "broken" not in answer:
                    return answer
                await self._end()
                return {"lost": answer["broken"]}
            except TimeoutError:
                await self._end()
                return {"lost": f"no answer after {seconds + GUARD_SECONDS:g} s", "timed_out": True}
            except (OSError, EOFError, msgspec.DecodeError) as error:
                await self._end()
                return {"lost": f"{type(error).__name__}"}
            except (
                BaseException
            ):  # a call that was cut off leaves its answer in the stream: what follows would be out of step
                await self._end()
                raise

    async def _write(self, message: dict[str, Any]) -> None:
        if self._streams is None:
            raise EOFError("closed while a function of the host was at work")
        body = json.dumps(message).encode()  # msgspec refuses half of a surrogate pair, which models do write
        self._streams[1].write(LENGTH.pack(len(body)) + body)
        await self._streams[1].drain()

    async def _read(self) -> dict[str, Any]:
        assert self._streams is not None
        reader = self._streams[0]
        length = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
        limits = self.limits
        if length > 2 * limits.file_bytes + 16 * limits.output_chars + 8 * limits.message_bytes + 65536:
            raise EOFError(f"an answer of {length} bytes")
        return msgspec.json.decode(await reader.readexactly(length), type=dict[str, Any])

    async def _end(self) -> str:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
        return await self._disconnect()
