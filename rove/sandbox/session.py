"""A session on the host's side: requests to a supervisor, wherever the supervisor runs, and recovery from its loss."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import msgspec

from rove.core.checks import check_values
from rove.core.errors import ConfigError, InfraError, LimitReachedError, SandboxError, SandboxFileError
from rove.core.plain import UNREADABLE, JsonObject
from rove.core.ranges import PositiveInt
from rove.sandbox.backend import Functions, Result, SandboxLimits
from rove.utils.functions import maybe_await

START_TIMEOUT_S = 60.0
"""Maximum seconds for a session to become ready."""
RESPONSE_GRACE_S = 2.0
"""Seconds after the time limit of a call until an unresponsive supervisor is considered lost."""
LENGTH = struct.Struct("<I")
NO_FUNCTIONS: Functions = {}
MAX_ERROR_CHARS = 2000
"""Maximum characters of an error that the code sees."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class SupervisedSession(ABC):
    """See `Session`. The next call restarts a dead session, and its result reports the lost files."""

    def __init__(self, limits: SandboxLimits, on_close: Callable[[SupervisedSession], None]):
        self.limits, self._on_close = limits, on_close
        self._lock = asyncio.Lock()  # a supervisor runs one call after the other
        self._streams: Streams | None = None
        self._closed = False

    @abstractmethod
    async def _connect(self) -> Streams:
        """Start the supervisor."""

    @abstractmethod
    async def _disconnect(self) -> str:
        """End all processes of the session and wait for them; return the reason if it never started."""

    async def start(self) -> None:
        """Start the session and wait until it is ready."""
        try:
            self._streams = await self._connect()
            async with asyncio.timeout(START_TIMEOUT_S):
                ready = await self._read()
        except BaseException as error:
            reason = await self._end()
            if isinstance(error, (TimeoutError, OSError, EOFError, *UNREADABLE)):
                raise SandboxError(f"a sandbox did not start: {reason or error or 'no answer'}") from error
            raise
        if "broken" in ready:
            await self._end()
            raise SandboxError(f"a sandbox did not start:\n{ready['broken']}")

    async def run_python(self, code: str, seconds: float | None = None, functions: Functions | None = None) -> Result:
        """See `Session.run_python`."""
        for name in functions or ():
            if not name.isidentifier():
                raise ConfigError(f"functions has '{name}'; expected a Python identifier")
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

    async def _run(self, request: JsonObject, seconds: float | None, functions: Functions = NO_FUNCTIONS) -> Result:
        seconds = self.limits.seconds if seconds is None else seconds
        if not 0 < seconds < float("inf"):
            raise ConfigError(f"seconds is {seconds}; expected a positive, finite number")
        answer = await self._call({**request, "seconds": seconds}, seconds, functions)
        if "lost" in answer:
            error = f"the sandbox died: {answer['lost']}"
            return Result(error=error, restarted=True, files_lost=True, timed_out=answer.get("timed_out", False))
        failed = answer.pop("failed", False)
        if failed:  # Python code that raised sends its traceback as the value
            answer["error"] = answer.pop("value")
        return msgspec.convert(answer, Result)

    async def _file(self, request: JsonObject) -> JsonObject:
        answer = await self._call(request, self.limits.seconds)
        if "lost" in answer:
            raise SandboxError(f"the sandbox died: {answer['lost']}")
        if "error" in answer:
            raise SandboxFileError(answer["error"])
        return answer

    async def _call(
        self, request: dict[str, object], seconds: float, functions: Functions = NO_FUNCTIONS
    ) -> JsonObject:
        """Send a request to the supervisor; return its answer, or {"lost": reason} if the session is dead.

        While host functions run, the time limit is suspended; the supervisor then reports the remaining time as `left`.
        """
        async with self._lock:
            if self._closed:
                raise SandboxError("this session is closed")
            if self._streams is None:
                await self.start()
            assert self._streams is not None
            try:
                async with asyncio.timeout(seconds + RESPONSE_GRACE_S) as limit:
                    await self._write(request)
                    while "host_call" in (answer := await self._read()):
                        limit.reschedule(None)
                        reply = await reply_to(answer["host_call"], functions, self.limits.message_bytes)
                        limit.reschedule(asyncio.get_running_loop().time() + answer["left"] + RESPONSE_GRACE_S)
                        await self._write({"reply": reply})
                if "broken" not in answer:
                    return answer
                await self._end()
                return {"lost": answer["broken"]}
            except TimeoutError:
                await self._end()
                return {"lost": f"no answer after {seconds + RESPONSE_GRACE_S:g} s", "timed_out": True}
            except (OSError, EOFError, *UNREADABLE) as error:
                await self._end()
                return {"lost": f"{type(error).__name__}"}
            except BaseException:
                # the answer of a cancelled call stays in the stream: later calls would read the wrong answers
                await self._end()
                raise

    async def _write(self, message: JsonObject) -> None:
        if self._streams is None:
            raise EOFError("closed while a host function was running")
        body = json.dumps(message).encode()  # json, because msgspec refuses lone surrogates, which models do write
        self._streams[1].write(LENGTH.pack(len(body)) + body)
        await self._streams[1].drain()

    async def _read(self) -> JsonObject:
        assert self._streams is not None
        reader = self._streams[0]
        length = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
        limits = self.limits
        # The supervisor cuts what it sends, so this is more than any answer; code that took it over could send without end.
        if length > 2 * limits.file_bytes + 16 * limits.output_chars + 8 * limits.message_bytes + 65536:
            raise EOFError(f"an answer of {length} bytes")
        return msgspec.json.decode(await reader.readexactly(length), type=JsonObject)

    async def _end(self) -> str:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
        return await self._disconnect()


class SupervisedBackend(ABC):
    """Opens supervised sessions; see `Backend`."""

    def __init__(self, limits: SandboxLimits | None, max_sessions: int):
        self.limits, self.max_sessions = limits or SandboxLimits(), max_sessions
        check_values(self, max_sessions=PositiveInt)
        self._sessions: set[SupervisedSession] = set()

    @abstractmethod
    def _new_session(self, limits: SandboxLimits) -> SupervisedSession: ...

    @abstractmethod
    async def close(self) -> None:
        """See `Backend.close`."""

    async def open(self, limits: SandboxLimits | None = None) -> SupervisedSession:
        """See `Backend.open`."""
        session = self._new_session(limits or self.limits)
        await session.start()
        self._sessions.add(session)
        return session

    def forget(self, session: SupervisedSession) -> None:
        """Remove a closed session."""
        self._sessions.discard(session)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class HostCall(msgspec.Struct, frozen=True):
    """A call of a host function in the form in which the code sent it."""

    name: str
    id: int = 0
    """Number of the call, repeated in the reply."""
    args: list[Any] = []
    kwargs: JsonObject = {}


async def reply_to(call_json: str, functions: Functions, max_bytes: int) -> str:
    """Return the reply to a host call: {"id", "value"}, or {"id", "error"} if the call or the value is invalid.

    `call_json` is untrusted.
    """
    number = 0
    try:
        call = msgspec.json.decode(call_json, type=HostCall)
        number = call.id
        if call.name not in functions:
            raise ValueError(
                f"{call.name[:100]}() cannot be called now; expected one of: {', '.join(functions) or 'none'}"
            )
        value = await maybe_await(functions[call.name](*call.args, **call.kwargs))
        # Encoded here, not where it is sent: a value that JSON cannot represent becomes an error that the code sees.
        reply = json.dumps({"id": number, "value": value}, ensure_ascii=False)
        if len(reply.encode(errors="replace")) > max_bytes:
            raise ValueError(f"{call.name}() returned more than {max_bytes} bytes (message_bytes)")
    except (InfraError, LimitReachedError):  # not the code's fault: the rollout ends
        raise
    except Exception as error:
        message = str(error) or type(error).__name__
        return json.dumps({"id": number, "error": message[:MAX_ERROR_CHARS]})
    return reply
