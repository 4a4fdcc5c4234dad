"""Episodes over plain requests: POST /reset, POST /step, GET /state, in the words of OpenEnv's own server."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from rove.integrations.environments.open_env_wire import RefusedError
from rove.integrations.open_env_episode import Episode, Room

IDLE_SECONDS = 600.0
"""An episode whose next step does not come for so long is given up once somebody wants room."""
STATUS = {"VALIDATION_ERROR": 422, "CAPACITY_REACHED": 503, "NOT_FOUND": 404}
NOT_BEGUN = {"episode_id": None, "step_count": 0}


@dataclass(eq=False, slots=True)
class _Held:
    """An episode between two requests."""

    episode: Episode
    used: float
    """When it was used last, by the event loop's clock."""
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)


class Rest:
    """Routes for clients that keep no connection.

    `reset` answers with the id of its episode in `metadata`: the one that was asked for, or a new one. `step` and `state` take
    `episode_id`; without one they mean the episode that began last. (OpenEnv's own server forgets an episode after
    each request, so that there only the first step of a new one can be played.) An episode ends with its last step, and when
    another is begun under its id.

    Args:
        begin: a new episode, from the data of a reset.
        room: shared with other sessions.
        idle_seconds: see `IDLE_SECONDS`.
    """

    def __init__(self, begin: Callable[[Mapping[str, Any]], Episode], room: Room, idle_seconds: float = IDLE_SECONDS):
        self.begin, self.room, self.idle_seconds = begin, room, idle_seconds
        self._held: dict[str, _Held] = {}

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_post("/reset", _answering(self.reset))
        app.router.add_post("/step", _answering(self.step))
        app.router.add_get("/state", _answering(self.state))

    async def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an episode: observation, reward, done.

        Raises:
            RefusedError: there is no room, or no such row.
        """
        now = asyncio.get_running_loop().time()
        name = str(data.get("episode_id") or uuid.uuid4().hex)
        for old in [old for old, held in self._held.items() if old == name or now - held.used > self.idle_seconds]:
            await self._end(old)
        self.room.take()
        try:
            held = _Held(self.begin({**data, "episode_id": name}), now)
        except BaseException:
            self.room.leave()
            raise
        self._held[name] = held
        return await self._observed(name, held, held.episode.observe())

    async def step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Act in an episode: observation, reward, done.

        Raises:
            RefusedError: no such episode is under way, or that is no action.
        """
        name, held = self._found(data)
        action = data.get("action")
        if not isinstance(action, Mapping):
            raise RefusedError('a step is {"action": {…}}, and optionally "episode_id"', "VALIDATION_ERROR")
        async with held.one_at_a_time:
            held.used = asyncio.get_running_loop().time()
            return await self._observed(name, held, held.episode.act(action))

    async def state(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """What is known of an episode."""
        return self._found(data)[1].episode.state if self._held or data.get("episode_id") else NOT_BEGUN

    async def close(self) -> None:
        """End every episode."""
        for name in list(self._held):
            await self._end(name)

    async def _observed(self, name: str, held: _Held, observing: Any) -> dict[str, Any]:
        try:
            told = await observing
        except RefusedError:
            raise
        except BaseException:
            await self._end(name, held)
            raise
        if told["done"]:
            await self._end(name, held)
        return {**told, "metadata": {**told.get("metadata", {}), "episode_id": name}}

    def _found(self, data: Mapping[str, Any]) -> tuple[str, _Held]:
        name = str(data.get("episode_id") or next(reversed(self._held), ""))
        if name not in self._held:
            which = f"episode '{name}'" if name else "episode"
            raise RefusedError(f"no {which} is under way: it is over, or reset has not begun it", "NOT_FOUND")
        return name, self._held[name]

    async def _end(self, name: str, ended: _Held | None = None) -> None:
        """End an episode; `ended` alone if it is given: another one may have its name by now."""
        held = self._held.get(name)
        if held is not None and ended in (None, held):
            del self._held[name]
            self.room.leave()
            await held.episode.close()


def _answering(method: Callable[[Mapping[str, Any]], Any]) -> Any:
    """A handler that answers with what a method returns; what it refuses is told with OpenEnv's status."""

    async def handle(request: web.Request) -> web.Response:
        try:
            told = await method(await _data(request))
            return web.Response(body=msgspec.json.encode(told), content_type="application/json")
        except RefusedError as error:
            return web.json_response({"detail": str(error), "code": error.code}, status=STATUS.get(error.code, 500))

    return handle


async def _data(request: web.Request) -> Mapping[str, Any]:
    if request.method == "GET":
        return dict(request.query)
    text = await request.text()
    try:
        data = json.loads(text) if text.strip() else {}
    except json.JSONDecodeError as error:
        raise RefusedError(f"the body is no JSON: {error}", "VALIDATION_ERROR") from error
    if not isinstance(data, dict):
        raise RefusedError("the body is no JSON object", "VALIDATION_ERROR")
    return data
