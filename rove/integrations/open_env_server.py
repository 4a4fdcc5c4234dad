"""Any environment as an OpenEnv server: who connects takes the model's role."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError
from rove.envs.environment import Environment
from rove.integrations.environments.open_env_wire import RefusedError
from rove.integrations.open_env_episode import ACTION, Episode, Room
from rove.integrations.open_env_rest import Rest
from rove.server.admission import own_pages_only

MOST_SESSIONS = 1024
SPLITS = {"train": True, "eval": False}
"""Name of a split → whether it is the training rows."""
TASKS = 1000
"""Rows that seeds choose from, and that are listed."""
OBSERVATION = {
    "type": "object",
    "title": "Said",
    "description": "What the environment has said since the model's last turn.",
    "properties": {
        "text": {"type": "string", "description": "The text of its messages."},
        "messages": {"type": "array", "items": {"type": "object"}, "description": "In OpenAI's form."},
        "tools": {"type": "array", "items": {"type": "object"}, "description": "That the model may call."},
        "done": {"type": "boolean"},
        "reward": {"type": "number", "description": "Of the rollout, when it is over; before that 0."},
        "metadata": {
            "type": "object",
            "description": "When it is over: every reward, metric, why it ended, the error.",
        },
    },
}
STATE = {
    "type": "object",
    "properties": {
        "episode_id": {"type": "string"},
        "step_count": {"type": "integer"},
        "example_id": {"type": "integer"},
        "split": {"type": "string"},
    },
}


class OpenEnvServer:
    """The routes of an OpenEnv server over an environment.

    Every connection to `/ws` is a session, and so is every episode over REST (see `Rest`). An episode is a rollout of the
    environment: who is connected says what the model would say (`{"message": …}`, with tools also `tool_calls`). `reset` takes
    `seed` (which of the rows, and everything random), or `split` ("train" or "eval") and `index`. The reward comes with
    `done`: that of the environment's rubric, group rewards left out.

    Args:
        env: the environment; torn down when the application ends.
        name: what it is called.
        max_sessions: further connections are refused with CAPACITY_REACHED.
        seed: of the episodes, for those who give none with `split` and `index`.
    """

    def __init__(self, env: Environment, name: str, max_sessions: int = MOST_SESSIONS, seed: int = 0):
        self.env, self.name, self.seed = env, name, seed
        self.room = Room(max_sessions)
        self.rest = Rest(self._begun, self.room)
        self._rows: dict[str, list[dict[str, Any]]] = {}
        if env.rubric.has_group_rewards:
            raise ConfigError(f"'{name}' has rewards that compare siblings; an episode of an OpenEnv server has none")

    def app(self) -> web.Application:
        """The web application. It has no API keys, so it refuses web pages of other origins."""
        app = web.Application(middlewares=[own_pages_only])
        app.router.add_get("/health", self._health)
        app.router.add_get("/schema", self._schema)
        app.router.add_get("/metadata", self._metadata)
        app.router.add_get("/list_environments", self._environments)
        app.router.add_get("/{env}/splits", self._splits)
        for name in ("tasks", "num_tasks", "task", "task_range"):
            app.router.add_post(f"/{{env}}/{name}", self._tasks)
        app.router.add_get("/ws", self._session)
        self.rest.add_to(app)
        app.on_cleanup.append(self._tear_down)
        return app

    async def _tear_down(self, _: web.Application) -> None:
        await self.rest.close()
        await self.env.tear_down()

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def _schema(self, _: web.Request) -> web.Response:
        return web.json_response({"action": ACTION, "observation": OBSERVATION, "state": STATE})

    async def _metadata(self, _: web.Request) -> web.Response:
        about = (type(self.env).__doc__ or "").strip().split("\n")[0]
        return web.json_response({"name": self.name, "description": about or self.name, "version": "1"})

    async def _environments(self, _: web.Request) -> web.Response:
        return web.json_response([self.name])

    async def _splits(self, request: web.Request) -> web.Response:
        self._check_name(request)
        kinds = {"train": "train", "eval": "validation"}
        return web.json_response([{"name": name, "type": kinds[name]} for name in SPLITS])

    async def _tasks(self, request: web.Request) -> web.Response:
        """The rows of a split: all, how many, one, or a range of them."""
        self._check_name(request)
        asked: dict[str, Any] = await request.json()
        try:
            rows = self._rows_of(asked.get("split", "train"))
        except RefusedError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        kind = request.path.rpartition("/")[2]
        if kind == "num_tasks":
            return web.json_response({"num_tasks": len(rows)})
        if kind == "task":
            if not 0 <= asked.get("index", -1) < len(rows):
                raise web.HTTPBadRequest(text="Invalid task index")
            return web.json_response({"task": _task(rows[asked["index"]])})
        chosen = rows[asked.get("start") : asked.get("stop")] if kind == "task_range" else rows
        named = {"env_name": self.name} if kind == "tasks" else {}
        return web.json_response({"tasks": [_task(row) for row in chosen], **named})

    def _check_name(self, request: web.Request) -> None:
        if request.match_info["env"] != self.name:
            raise web.HTTPNotFound(text=f"no environment '{request.match_info['env']}'; here is '{self.name}'")

    def _rows_of(self, split: str) -> list[dict[str, Any]]:
        if split not in SPLITS:
            raise RefusedError(f"no split '{split}'; expected one of {', '.join(SPLITS)}", "VALIDATION_ERROR")
        if split not in self._rows:
            self._rows[split] = list(self.env.examples(TASKS, SPLITS[split]))
        return self._rows[split]

    def _begun(self, data: Mapping[str, Any]) -> Episode:
        split, seed, index = data.get("split", "train"), data.get("seed"), data.get("index")
        rows = self._rows_of(split)
        if index is None:
            index = derive_seed("openenv", self.seed if seed is None else seed) % len(rows)
        if not isinstance(index, int) or not 0 <= index < len(rows):
            raise RefusedError(f"index is {index!r}; expected 0 to {len(rows) - 1}", "VALIDATION_ERROR")
        seed = self.seed if seed is None else seed
        return Episode(self.env, rows[index], seed, split, str(data.get("episode_id") or f"{split}-{index}-{seed}"))

    async def _session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(heartbeat=30.0, max_msg_size=64 << 20)
        await socket.prepare(request)
        try:
            self.room.take()
        except RefusedError as error:
            await _send(socket, "error", {"message": str(error), "code": error.code})
            await socket.close()
            return socket
        episode: Episode | None = None
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    continue
                try:
                    frame = json.loads(message.data)
                    kind, data = frame.get("type", ""), frame.get("data") or {}
                    if kind == "close":
                        break
                    if kind == "reset":
                        if episode is not None:
                            await episode.close()
                        episode = self._begun(data)
                    await _send(socket, *await _answered(kind, data, episode))
                except json.JSONDecodeError as error:
                    await _send(socket, "error", {"message": f"Invalid JSON: {error}", "code": "INVALID_JSON"})
                except Exception as error:
                    code = error.code if isinstance(error, RefusedError) else "EXECUTION_ERROR"
                    await _send(socket, "error", {"message": str(error), "code": code})
        finally:
            self.room.leave()
            if episode is not None:
                await episode.close()
            await socket.close()
        return socket


async def _answered(kind: str, data: Mapping[str, Any], episode: Episode | None) -> tuple[str, dict[str, Any]]:
    if kind not in ("reset", "step", "state"):
        raise RefusedError(f"Unknown message type: {kind}", "UNKNOWN_TYPE")
    if kind == "state":
        return "state", {"episode_id": None, "step_count": 0} if episode is None else episode.state
    if episode is None:
        raise RefusedError("reset first", "EXECUTION_ERROR")
    return "observation", await (episode.observe() if kind == "reset" else episode.act(data))


async def _send(socket: web.WebSocketResponse, kind: str, data: Mapping[str, Any]) -> None:
    with suppress(ConnectionError):
        await socket.send_str(msgspec.json.encode({"type": kind, "data": data}).decode())


def _task(example: Mapping[str, Any]) -> dict[str, Any]:
    """What of a row whoever plays it may see: the answer is not among it."""
    return {"index": example["example_id"], "prompt": example["prompt"]}
