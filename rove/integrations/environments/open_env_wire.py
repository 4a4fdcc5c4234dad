"""One session of OpenEnv's WebSocket protocol, from the client's side."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from typing import Any

import aiohttp

from rove.core.errors import Error, InfraError

MOST_BYTES = 64 << 20
"""Of one message."""
CLOSE_SECONDS = 1.0
"""How long a server may take to say goodbye."""
WAIT_FIRST, WAIT_MOST = 0.05, 5.0
"""Seconds between tries while the server has no room."""


class RefusedError(Error):
    """The server refused what it was asked; `code` is OpenEnv's name for why."""

    def __init__(self, message: str, code: str = "", details: Any = None):
        super().__init__(message)
        self.code, self.details = code, details


class Session:
    """An environment of one's own, at the other end of a WebSocket.

    Its messages are read as they come, also while nobody waits for one: the server's pings are answered during the
    longest answer of a model.

    Args:
        http: whose connection it is.
        url: of the server, like http://localhost:8000.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str):
        self._http, self._url = http, url
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._arrived: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None

    async def reset(self, seconds: float, room_seconds: float, **data: Any) -> dict[str, Any]:
        """Begin an episode: observation, reward, done. Waits while the server has no room for another session.

        Args:
            seconds: for the answer.
            room_seconds: for room.

        Raises:
            InfraError: the server cannot be reached, does not answer, or has no room for so long.
            RefusedError: it refused.
        """
        deadline, wait, attempts = time.monotonic() + room_seconds, WAIT_FIRST, []
        while True:
            try:
                if self._socket is None:
                    await self._connect(seconds)
                return await self.ask("reset", data, seconds)
            except RefusedError as error:
                if error.code != "CAPACITY_REACHED":
                    raise
                attempts.append(str(error))
            await self.close()
            if time.monotonic() > deadline:
                raise InfraError(f"{self._url} had no room for another session in {room_seconds:g} s", attempts[-1:])
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(2 * wait, WAIT_MOST)

    async def step(self, action: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Do something: observation, reward, done.

        Raises:
            InfraError: the server is gone, or does not answer.
            RefusedError: it refused; with code VALIDATION_ERROR the action is none.
        """
        return await self.ask("step", action, seconds)

    async def ask(self, kind: str, data: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The server's answer to a message of any kind."""
        assert self._socket is not None
        frame: dict[str, Any] | None = None
        with suppress(ConnectionError):  # it closes after it has said why: that is read
            await self._socket.send_json({"type": kind, "data": data})
        try:
            async with asyncio.timeout(seconds):
                frame = await self._arrived.get()
        except TimeoutError as error:
            raise InfraError(f"{self._url} did not answer '{kind}' within {seconds:g} s") from error
        if frame is None:
            raise InfraError(f"{self._url} closed the session")
        told = frame.get("data") or {}
        if frame.get("type") == "error":
            raise RefusedError(str(told.get("message", "")), str(told.get("code", "")), told.get("errors"))
        return told

    async def close(self) -> None:
        """End the session; the server makes room for another."""
        socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await socket.send_json({"type": "close"})
                    await socket.close()
        if self._reading is not None:
            self._reading.cancel()

    async def _connect(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                self._socket = await self._http.ws_connect(f"{self._url}/ws", max_msg_size=MOST_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            said = str(error) or type(error).__name__
            raise InfraError(f"no OpenEnv server can be reached at {self._url}: {said}") from error
        self._arrived = asyncio.Queue()
        self._reading = asyncio.create_task(self._read(self._socket, self._arrived))

    async def _read(self, socket: aiohttp.ClientWebSocketResponse, arrived: asyncio.Queue[Any]) -> None:
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    arrived.put_nowait(message.json())
        except ValueError:  # no JSON: no OpenEnv server
            await socket.close()
        finally:
            arrived.put_nowait(None)
