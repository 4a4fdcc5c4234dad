"""Any environment as an OpenEnv server: who connects takes the model's seat."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from rove.digest import derive_seed
from rove.envs.environment import Environment
from rove.errors import ConfigError, Error
from rove.groups import run_groups
from rove.messages import AssistantMessage, text_of
from rove.protocols import Request, Response
from rove.records import RolloutRecord
from rove.rollout import plan

MOST_SESSIONS = 1024
SPLITS = {"train": True, "eval": False}
"""Name of a split → whether it is the training rows."""
TASKS = 1000
"""Rows that seeds choose from, and that are listed."""
ACTION = {
    "type": "object",
    "title": "Turn",
    "description": "What the model says.",
    "properties": {
        "message": {"type": "string", "description": "Its text."},
        "tool_calls": {"type": "array", "items": {"type": "object"}, "description": "In OpenAI's form."},
        "metadata": {"type": "object"},
    },
    "required": ["message"],
}
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


class _RefusedError(Error):
    """What was asked is not to be had, and by which of OpenEnv's names."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class _Seat:
    """A client whose answers are the actions of whoever is connected."""

    max_concurrent = 1

    def __init__(self) -> None:
        self.shown: asyncio.Queue[Request | RolloutRecord] = asyncio.Queue()
        self.said: asyncio.Queue[AssistantMessage] = asyncio.Queue()

    async def respond(self, request: Request) -> Response:
        """Show the conversation, and wait for an action."""
        self.shown.put_nowait(request)
        message = await self.said.get()
        return Response(message, finish_reason="tool_calls" if message.get("tool_calls") else "stop")

    async def close(self) -> None:
        """Nothing to free."""


class _Episode:
    """One rollout, played from outside."""

    def __init__(self, env: Environment, example: Mapping[str, Any], seed: int, split: str, episode_id: str):
        self.state = {"episode_id": episode_id, "step_count": 0, "example_id": example["example_id"], "split": split}
        self.seat = _Seat()
        self.done = False
        self._known = 0
        self._play = asyncio.create_task(self._played(env, dict(example), seed))

    async def _played(self, env: Environment, example: dict[str, Any], seed: int) -> None:
        async for record in run_groups(env, self.seat, plan([example], 1, seed), max_concurrent=1):
            self.seat.shown.put_nowait(record)

    async def observe(self) -> dict[str, Any]:
        """What there is to see once the environment waits for an action, or the rollout is over."""
        shown = asyncio.create_task(self.seat.shown.get())
        await asyncio.wait([shown, self._play], return_when=asyncio.FIRST_COMPLETED)
        if not shown.done() and self._play.done() and self.seat.shown.empty():
            shown.cancel()
            self._play.result()
        told = await shown
        if isinstance(told, Request):
            messages = told.messages if told.text is None else [{"role": "user", "content": told.text}]
            new, self._known = messages[self._known :], len(messages) + 1
            return _observation(new, told.tools, 0.0, False)
        self.done = True
        scores, error = told.scores, told.error
        metadata: dict[str, Any] = {"stop_condition": told.stop_condition, "is_truncated": told.is_truncated}
        if scores is not None:
            metadata |= {"rewards": scores.rewards, "metrics": scores.metrics}
        if error is not None:
            metadata["error"] = {"phase": error.phase, "type": error.type, "message": error.message}
        new = [*told.prompt, *told.completion][self._known :]
        return _observation(new, None, None if scores is None else scores.reward, True, metadata)

    async def act(self, action: Mapping[str, Any]) -> dict[str, Any]:
        """Answer as the model, and see what comes of it."""
        if self.done:
            raise _RefusedError("EXECUTION_ERROR", "the episode is over; reset begins another one")
        self.state["step_count"] += 1
        self.seat.said.put_nowait(_message(action))
        return await self.observe()

    async def close(self) -> None:
        """End the rollout, wherever it is."""
        self._play.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._play


class OpenEnvServer:
    """The routes of an OpenEnv server over an environment.

    Every connection to `/ws` is a session, an episode in it a rollout of the environment: who is connected says what the model
    would say (`{"message": …}`, with tools also `tool_calls`). `reset` takes `seed` (which of the rows, and everything random),
    or `split` ("train" or "eval") and `index`. The reward comes with `done`: that of the environment's rubric, group
    rewards left out.

    Args:
        env: the environment; torn down when the application ends.
        name: what it is called.
        most_sessions: further connections are refused with CAPACITY_REACHED.
        seed: of the episodes, for those who give none with `split` and `index`.
    """

    def __init__(self, env: Environment, name: str, most_sessions: int = MOST_SESSIONS, seed: int = 0):
        self.env, self.name, self.most_sessions, self.seed = env, name, most_sessions, seed
        self.sessions = 0
        self._rows: dict[str, list[dict[str, Any]]] = {}
        if env.rubric.has_group_rewards:
            raise ConfigError(f"'{name}' has rewards that compare siblings; an episode of an OpenEnv server has none")

    def app(self) -> web.Application:
        """The web application."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/schema", self._schema)
        app.router.add_get("/metadata", self._metadata)
        app.router.add_get("/list_environments", self._environments)
        app.router.add_get("/{env}/splits", self._splits)
        for name in ("tasks", "num_tasks", "task", "task_range"):
            app.router.add_post(f"/{{env}}/{name}", self._tasks)
        app.router.add_get("/ws", self._session)
        app.on_cleanup.append(self._tear_down)
        return app

    async def _tear_down(self, _: web.Application) -> None:
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
        except _RefusedError as error:
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
            raise _RefusedError("VALIDATION_ERROR", f"no split '{split}'; expected one of {', '.join(SPLITS)}")
        if split not in self._rows:
            self._rows[split] = list(self.env.examples(TASKS, SPLITS[split]))
        return self._rows[split]

    def _begun(self, data: Mapping[str, Any]) -> _Episode:
        split, seed, index = data.get("split", "train"), data.get("seed"), data.get("index")
        rows = self._rows_of(split)
        if index is None:
            index = derive_seed("openenv", self.seed if seed is None else seed) % len(rows)
        if not isinstance(index, int) or not 0 <= index < len(rows):
            raise _RefusedError("VALIDATION_ERROR", f"index is {index!r}; expected 0 to {len(rows) - 1}")
        seed = self.seed if seed is None else seed
        return _Episode(self.env, rows[index], seed, split, str(data.get("episode_id") or f"{split}-{index}-{seed}"))

    async def _session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(heartbeat=30.0, max_msg_size=64 << 20)
        await socket.prepare(request)
        if self.sessions >= self.most_sessions:
            told = f"all {self.most_sessions} sessions are taken"
            await _send(socket, "error", {"message": told, "code": "CAPACITY_REACHED"})
            await socket.close()
            return socket
        self.sessions += 1
        episode: _Episode | None = None
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
                    code = error.code if isinstance(error, _RefusedError) else "EXECUTION_ERROR"
                    await _send(socket, "error", {"message": str(error), "code": code})
        finally:
            self.sessions -= 1
            if episode is not None:
                await episode.close()
            await socket.close()
        return socket


async def _answered(kind: str, data: Mapping[str, Any], episode: _Episode | None) -> tuple[str, dict[str, Any]]:
    if kind not in ("reset", "step", "state"):
        raise _RefusedError("UNKNOWN_TYPE", f"Unknown message type: {kind}")
    if kind == "state":
        return "state", {"episode_id": None, "step_count": 0} if episode is None else episode.state
    if episode is None:
        raise _RefusedError("EXECUTION_ERROR", "reset first")
    return "observation", await (episode.observe() if kind == "reset" else episode.act(data))


async def _send(socket: web.WebSocketResponse, kind: str, data: Mapping[str, Any]) -> None:
    with suppress(ConnectionError):
        await socket.send_str(msgspec.json.encode({"type": kind, "data": data}).decode())


def _observation(
    messages: Sequence[Mapping[str, Any]],
    tools: list[dict[str, Any]] | None,
    reward: float | None,
    done: bool,
    metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    text = "\n\n".join(filter(None, (text_of(one) for one in messages if one["role"] != "assistant")))
    seen: dict[str, Any] = {"text": text, "messages": list(messages)}
    if tools is not None:
        seen["tools"] = tools
    told = {"observation": {**seen, "metadata": metadata or {}}, "reward": reward, "done": done}
    return {**told, "metadata": metadata} if metadata else told


def _message(action: Mapping[str, Any]) -> AssistantMessage:
    unknown = action.keys() - ACTION["properties"].keys()
    text, calls = action.get("message"), action.get("tool_calls")
    if unknown or not isinstance(text, str) or not isinstance(calls, (list, type(None))):
        raise _RefusedError(
            "VALIDATION_ERROR",
            f"an action is {{'message': a text, 'tool_calls': optionally a list}}, got {_short(action)}",
        )
    return AssistantMessage(text, tool_calls=calls) if calls else AssistantMessage(text)


def _short(action: Mapping[str, Any]) -> str:
    """An action as an error quotes it."""
    said = json.dumps(action, ensure_ascii=False, default=str)
    return said if len(said) <= 200 else f"{said[:200]}…"


def _task(example: Mapping[str, Any]) -> dict[str, Any]:
    """What of a row whoever plays it may see: the answer is not among it."""
    return {"index": example["example_id"], "prompt": example["prompt"]}
