"""Any environment as an OpenEnv server: who connects takes the model's role."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, text_of
from rove.core.protocols import Request, Response
from rove.core.records import RolloutRecord
from rove.envs.environment import Environment
from rove.integrations.environments.open_env import RefusedError
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import plan
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


class _Role:
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


class Episode:
    """One rollout, played from outside."""

    def __init__(self, env: Environment, example: Mapping[str, Any], seed: int, split: str, episode_id: str):
        self.state = {"episode_id": episode_id, "step_count": 0, "example_id": example["example_id"], "split": split}
        self.role = _Role()
        self.done = False
        self._known = 0
        self._play = asyncio.create_task(self._played(env, dict(example), seed))

    async def _played(self, env: Environment, example: dict[str, Any], seed: int) -> None:
        async for record in run_groups(env, self.role, plan([example], 1, seed), max_concurrent=1):
            self.role.shown.put_nowait(record)

    async def observe(self) -> dict[str, Any]:
        """What there is to see once the environment waits for an action, or the rollout is over."""
        shown = asyncio.create_task(self.role.shown.get())
        await asyncio.wait([shown, self._play], return_when=asyncio.FIRST_COMPLETED)
        if not shown.done() and self._play.done() and self.role.shown.empty():
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
            raise RefusedError("the episode is over; reset begins another one", "EXECUTION_ERROR")
        said = _message(action)
        self.state["step_count"] += 1
        self.role.said.put_nowait(said)
        return await self.observe()

    async def close(self) -> None:
        """End the rollout, wherever it is."""
        self._play.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._play


class Room:
    """How many sessions there may be at once."""

    def __init__(self, most: int):
        self.most = most
        self.taken = 0

    def take(self) -> None:
        """One more.

        Raises:
            RefusedError: there are as many already.
        """
        if self.taken >= self.most:
            raise RefusedError(f"all {self.most} sessions are taken", "CAPACITY_REACHED")
        self.taken += 1

    def leave(self) -> None:
        """One less."""
        self.taken -= 1


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
        raise RefusedError(
            f"an action is {{'message': a text, 'tool_calls': optionally a list}}, got {_short(action)}",
            "VALIDATION_ERROR",
        )
    return AssistantMessage(text, tool_calls=calls) if calls else AssistantMessage(text)


def _short(action: Mapping[str, Any]) -> str:
    """An action as an error quotes it."""
    said = json.dumps(action, ensure_ascii=False, default=str)
    return said if len(said) <= 200 else f"{said[:200]}…"


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
