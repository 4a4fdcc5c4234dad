"""Any environment as an OpenEnv server: the connecting client acts as the model."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, excerpt
from rove.core.messages import AssistantMessage, UserMessage, text_of
from rove.core.plain import UNREADABLE, JsonMapping, JsonObject, MessageDict, Row, ToolDefinition, is_object
from rove.core.protocols import Request, Response
from rove.core.records import RolloutRecord
from rove.envs.dataset import example_key
from rove.envs.environment import Environment
from rove.integrations import text_messages
from rove.integrations.environments.open_env import RefusedError
from rove.integrations.stepwise import StepwiseClient, StepwiseRollout
from rove.rollouts.groups import RolloutError, run_groups
from rove.rollouts.runner import Job
from rove.server.admission import own_pages_only
from rove.server.validation import json_response

MAX_SESSIONS = 1024
SPLITS = {"train": True, "eval": False}
"""Name of a split → whether it has the training rows."""
MAX_TASKS = 1000
"""Maximum rows of a split that is a generator, which may be endless; seeds select a row, and clients can list the rows."""
MAX_QUEUED_FRAMES = 16
"""Maximum messages of a client that wait for the replies to earlier ones."""
OBSERVATION = {
    "type": "object",
    "title": "Observation",
    "description": "Messages of the environment since the model's last turn.",
    "properties": {
        "text": {"type": "string", "description": "The text of its messages."},
        "messages": {"type": "array", "items": {"type": "object"}, "description": "In OpenAI's form."},
        "tools": {"type": "array", "items": {"type": "object"}, "description": "Tools that the model may call."},
        "done": {"type": "boolean"},
        "reward": {"type": "number", "description": "Reward of the rollout at its end; 0 before."},
        "metadata": {"type": "object", "description": "At the end: rewards, metrics, stop condition, error."},
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
    """The routes of an OpenEnv server for an environment.

    Every connection to `/ws` is a session, and so is every episode over REST (see `RestEpisodes`). An episode is a rollout of the
    environment in which the client sends the model's messages: `{"message": …}`, with tools also `tool_calls`. `reset` takes
    `seed` (selects the row and seeds the environment), or `split` ("train" or "eval") and `index`. Without `seed` and `index`,
    every episode has another seed. The last observation has the rubric's reward, without group rewards.

        web.run_app(OpenEnvServer(env, "tictactoe").app(), port=8000)

    Args:
        env: the environment; torn down when the application ends.
        max_sessions: maximum sessions; further connections are refused with CAPACITY_REACHED.
        seed: default seed of episodes with an `index`, and seed of the first episode without one.
    """

    def __init__(self, env: Environment, name: str, max_sessions: int = MAX_SESSIONS, seed: int = 0):
        self.env, self.name, self.seed = env, name, seed
        self.limit = SessionLimit(max_sessions)
        self.rest = RestEpisodes(self._begin_episode, self.limit)
        self._rows: dict[str, list[Row]] = {}
        self._seeds = count(seed)
        if env.scoring_rubric.has_group_rewards:
            raise ConfigError(
                f"'{name}' has group rewards, but an episode of an OpenEnv server is a single rollout; remove them"
            )

    def app(self) -> web.Application:
        """Return the web application. It has no API keys, so it refuses web pages of other origins."""
        # Any page in the user's browser could otherwise send requests to this machine.
        app = web.Application(middlewares=[own_pages_only])
        description = (type(self.env).__doc__ or "").strip().split("\n")[0]
        fixed_bodies = {
            "health": {"status": "healthy"},
            "schema": {"action": ACTION, "observation": OBSERVATION, "state": STATE},
            "metadata": {"name": self.name, "description": description or self.name, "version": "1"},
            "list_environments": [self.name],
        }
        for name, body in fixed_bodies.items():
            app.router.add_get(f"/{name}", partial(_respond_with, body))
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

    async def _splits(self, request: web.Request) -> web.Response:
        self._check_name(request)
        types = {"train": "train", "eval": "validation"}
        return json_response([{"name": name, "type": types[name]} for name in SPLITS])

    async def _tasks(self, request: web.Request) -> web.Response:
        """Return rows of a split (all, one, or a range), or their number."""
        self._check_name(request)
        try:
            query = msgspec.json.decode(await request.read(), type=_TaskQuery)
        except UNREADABLE as error:
            raise web.HTTPBadRequest(text=f"the body is not a query of tasks: {error}") from error
        try:
            rows = self._rows_of(query.split)
        except RefusedError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        route = request.path.rpartition("/")[2]
        if route == "num_tasks":
            return json_response({"num_tasks": len(rows)})
        if route == "task":
            if not 0 <= query.index < len(rows):
                raise web.HTTPBadRequest(text="Invalid task index")
            return json_response({"task": _public_task(rows[query.index])})
        if route == "task_range":
            rows = rows[query.start : query.stop]
        body: JsonObject = {"tasks": [_public_task(row) for row in rows]}
        if route == "tasks":
            body["env_name"] = self.name
        return json_response(body)

    def _check_name(self, request: web.Request) -> None:
        if request.match_info["env"] != self.name:
            raise web.HTTPNotFound(text=f"no environment '{request.match_info['env']}'; this server has '{self.name}'")

    def _rows_of(self, split: str) -> list[Row]:
        if split not in SPLITS:
            raise RefusedError(f"no split '{split}'; expected one of {', '.join(SPLITS)}", "VALIDATION_ERROR")
        if split not in self._rows:
            train = SPLITS[split]
            is_counted = self.env.count_examples(-1, train) is not None
            self._rows[split] = list(self.env.examples(-1 if is_counted else MAX_TASKS, train))
        return self._rows[split]

    def _begin_episode(self, data: JsonMapping) -> Episode:
        split, seed, index = str(data.get("split", "train")), data.get("seed"), data.get("index")
        rows = self._rows_of(split)
        if seed is None:
            # A client that names no episode, such as one that resets in a loop, must not get the same row every time.
            seed = next(self._seeds) if index is None else self.seed
        # A trainer that knows only OpenEnv sends a seed per group, which must select a row.
        if index is None:
            index = derive_seed("openenv", seed) % len(rows)
        if not isinstance(index, int) or not 0 <= index < len(rows):
            raise RefusedError(f"index is {index!r}; expected 0 to {len(rows) - 1}", "VALIDATION_ERROR")
        episode_id = str(data.get("episode_id") or f"{split}-{index}-{seed}")
        return Episode(self.env, rows[index], seed, split, episode_id)

    async def _session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(heartbeat=30.0, max_msg_size=64 << 20)
        await socket.prepare(request)
        # The connection is accepted first, because OpenEnv's clients read the reason from a message.
        try:
            self.limit.acquire()
        except RefusedError as error:
            await _send(socket, "error", {"message": str(error), "code": error.code})
            await socket.close()
            return socket
        episode: Episode | None = None
        frames: asyncio.Queue[str | None] = asyncio.Queue(MAX_QUEUED_FRAMES)
        # A ping is answered only while the socket is read. During a step that takes longer than 40 s without an answer, OpenEnv's
        # client would close the connection.
        reading = asyncio.create_task(_read_frames(socket, frames))
        try:
            while (text := await frames.get()) is not None:
                try:
                    kind, data = _parse_frame(text)
                    if kind == "close":
                        break
                    if kind == "reset":
                        if episode is not None:
                            await episode.close()
                            episode = None
                        episode = self._begin_episode(data)
                    await _send(socket, *await _reply(kind, data, episode))
                # An error of the environment fails this message, and not the connection or the server.
                except Exception as error:
                    code = error.code if isinstance(error, RefusedError) else "EXECUTION_ERROR"
                    await _send(socket, "error", {"message": str(error), "code": code})
        finally:
            reading.cancel()
            await asyncio.wait([reading])
            self.limit.release()
            if episode is not None:
                await episode.close()
            await socket.close()
        return socket


async def _read_frames(socket: web.WebSocketResponse, frames: asyncio.Queue[str | None]) -> None:
    """Queue the texts that arrive; at the end of the connection, None."""
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await frames.put(message.data)
    await frames.put(None)


def _parse_frame(text: str) -> tuple[str, JsonMapping]:
    """Return the type and the data of a message."""
    try:
        frame = json.loads(text)
    except (ValueError, *UNREADABLE) as error:
        raise RefusedError(f"Invalid JSON: {error}", "INVALID_JSON") from error
    kind = frame.get("type", "") if is_object(frame) else None
    data = (frame.get("data") or {}) if is_object(frame) else None
    if not isinstance(kind, str) or not is_object(data):
        raise RefusedError(
            f'the message is {excerpt(frame)}; expected {{"type": "reset", "data": {{…}}}}', "VALIDATION_ERROR"
        )
    return kind, data


async def _respond_with(body: object, _: web.Request) -> web.Response:
    return json_response(body)


async def _reply(kind: str, data: JsonMapping, episode: Episode | None) -> tuple[str, JsonObject]:
    if kind not in ("reset", "step", "state"):
        raise RefusedError(f"Unknown message type: {kind}", "UNKNOWN_TYPE")
    if kind == "state":
        return "state", NO_EPISODE if episode is None else episode.state
    if episode is None:
        raise RefusedError("there is no episode; send reset first", "EXECUTION_ERROR")
    return "observation", await (episode.observe() if kind == "reset" else episode.act(data))


async def _send(socket: web.WebSocketResponse, kind: str, data: JsonMapping) -> None:
    with suppress(ConnectionError):
        await socket.send_str(msgspec.json.encode({"type": kind, "data": data}).decode())


class _TaskQuery(msgspec.Struct, frozen=True):
    """What a client asks of a split: all its tasks, or the task with an index, or a range."""

    split: str = "train"
    index: int = -1
    start: int | None = None
    stop: int | None = None


def _public_task(example: JsonMapping) -> JsonObject:
    """Return the parts of a row that a client may see; the answer is not one of them."""
    return {"index": example["example_id"], "prompt": example["prompt"]}


ACTION = {
    "type": "object",
    "title": "Turn",
    "description": "The model's message.",
    "properties": {
        "message": {"type": "string", "description": "Text of the message."},
        "tool_calls": {"type": "array", "items": {"type": "object"}, "description": "In OpenAI's form."},
        "metadata": {"type": "object"},
    },
    "required": ["message"],
}


class Episode:
    """One rollout in which a remote client acts as the model.

    Args:
        index: Position of the rollout in its group.
    """

    def __init__(self, env: Environment, example: JsonMapping, seed: int, split: str, episode_id: str, index: int = 0):
        self.state = {"episode_id": episode_id, "step_count": 0, "example_id": example["example_id"], "split": split}
        self.done = False
        self._is_text = False
        # The conversation as the client has it: messages, or in completion mode a text.
        self._messages: list[MessageDict] = []
        self._text = ""
        self._rollout: StepwiseRollout[Request, Response] = StepwiseRollout()
        self._rollout.start(self._run(env, dict(example), seed, index))

    async def _run(self, env: Environment, example: Row, seed: int, index: int) -> list[RolloutRecord]:
        job = Job(example, example_key(example), index, seed)
        rollouts = run_groups(env, StepwiseClient(self._rollout), [[job]], max_concurrent=1)
        return [record async for record in rollouts]

    async def observe(self) -> JsonObject:
        """Return the observation once the environment waits for an action, or the rollout has ended."""
        request = None
        with suppress(RolloutError):  # the last observation describes the error of the record
            request = await self._rollout.next_request()
        if request is not None:
            self._is_text = request.text is not None
            return _observation(self._new_messages(request.messages), request.tools, 0.0, False)
        self.done = True
        record = self._rollout.record
        assert record is not None
        scores, error = record.scores, record.error
        metadata: JsonObject = {"stop_condition": record.stop_condition, "is_truncated": record.is_truncated}
        if scores is not None:
            metadata |= {"rewards": scores.rewards, "metrics": scores.metrics}
        if error is not None:
            metadata["error"] = {"phase": error.phase, "type": error.type, "message": error.message}
        new = self._new_messages([*record.prompt, *record.completion])
        return _observation(new, None, None if scores is None else scores.reward, True, metadata)

    async def act(self, action: JsonMapping) -> JsonObject:
        """Respond as the model, and return the next observation."""
        if self.done:
            raise RefusedError("the episode has ended; send reset to begin another one", "EXECUTION_ERROR")
        message = _message(action)
        self.state["step_count"] += 1
        self._messages += text_messages([message])
        self._text += text_of(message)
        finish_reason = "tool_calls" if message.get("tool_calls") else "stop"
        self._rollout.reply(Response(message, finish_reason=finish_reason))
        return await self.observe()

    def _new_messages(self, messages: Sequence[MessageDict]) -> list[MessageDict]:
        """Return the messages that the client does not have: all of them if it has another conversation."""
        if self._is_text:
            text = "".join(map(text_of, messages))
            new_text = text[self._num_sent(text, self._text) :]
            self._text = text
            return [UserMessage(new_text)] if new_text else []
        conversation = text_messages(messages)
        new = list(messages[self._num_sent(conversation, self._messages) :])
        self._messages = conversation
        return new

    def _num_sent(self, conversation: Sequence[object], sent: Sequence[object]) -> int:
        """Return how many messages, or characters, of a conversation the client has."""
        # The record of a rollout that ended at its time limit does not have a reply that came too late.
        length = min(len(conversation), len(sent)) if self.done else len(sent)
        return length if conversation[:length] == sent[:length] else 0

    async def close(self) -> None:
        """Cancel the rollout."""
        await self._rollout.close()


class SessionLimit:
    """Limits the number of concurrent sessions."""

    def __init__(self, max_sessions: int):
        self.max_sessions = max_sessions
        self.active = 0

    def acquire(self) -> None:
        """Count a new session."""
        if self.active >= self.max_sessions:
            raise RefusedError(f"all {self.max_sessions} sessions are in use", "CAPACITY_REACHED")
        self.active += 1

    def release(self) -> None:
        """Count the end of a session."""
        self.active -= 1


def _observation(
    messages: Sequence[JsonMapping],
    tools: list[ToolDefinition] | None,
    reward: float | None,
    done: bool,
    metadata: JsonObject | None = None,
) -> JsonObject:
    texts = [text_of(message) for message in messages if message["role"] != "assistant"]
    observation: JsonObject = {"text": "\n\n".join(filter(None, texts)), "messages": list(messages)}
    if tools is not None:
        observation["tools"] = tools
    observation["metadata"] = metadata or {}
    result: JsonObject = {"observation": observation, "reward": reward, "done": done}
    if metadata:
        result["metadata"] = metadata
    return result


def _message(action: JsonMapping) -> AssistantMessage:
    unknown = action.keys() - ACTION["properties"].keys()
    text, calls = action.get("message"), action.get("tool_calls")
    if unknown or not isinstance(text, str) or not isinstance(calls, (list, type(None))):
        raise RefusedError(
            f"the action is {excerpt(action)}; expected {{'message': string}}, optionally with 'tool_calls': list",
            "VALIDATION_ERROR",
        )
    return AssistantMessage(text, tool_calls=calls) if calls else AssistantMessage(text)


IDLE_TIMEOUT_S = 600.0
"""Episodes that have been idle for longer than this are closed when another episode begins."""
STATUS = {"VALIDATION_ERROR": 422, "CAPACITY_REACHED": 503, "NOT_FOUND": 404}
NO_EPISODE = {"episode_id": None, "step_count": 0}


@dataclass(eq=False, slots=True)
class _StoredEpisode:
    """An episode between two requests."""

    episode: Episode
    last_used: float
    """Time of the last request, by the event loop's clock."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class RestEpisodes:
    """Routes for clients without a connection: POST /reset, POST /step, GET /state.

    `reset` returns the id of its episode in `metadata`: the requested one, or a new one. `step` and `state` take `episode_id`;
    the default is the episode that began last. (OpenEnv's own server forgets an episode after each request, so that only the
    first step can be taken there.) An episode ends with its last step, or when another episode begins with the same id.
    """

    def __init__(
        self, begin: Callable[[JsonMapping], Episode], limit: SessionLimit, idle_seconds: float = IDLE_TIMEOUT_S
    ):
        self.begin, self.limit, self.idle_seconds = begin, limit, idle_seconds
        self._episodes: dict[str, _StoredEpisode] = {}

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_post("/reset", _handler(self.reset))
        app.router.add_post("/step", _handler(self.step))
        app.router.add_get("/state", _handler(self.state))

    async def reset(self, data: JsonMapping) -> JsonObject:
        """Begin an episode; return observation, reward and done."""
        time = asyncio.get_running_loop().time()
        name = str(data.get("episode_id") or uuid.uuid4().hex)
        # A REST client has no connection that ends, so abandoned episodes would use up the limit of sessions.
        for stored_name, stored in list(self._episodes.items()):
            if stored_name == name or time - stored.last_used > self.idle_seconds:
                await self._end(stored_name)
        self.limit.acquire()
        try:
            stored = _StoredEpisode(self.begin({**data, "episode_id": name}), time)
        except BaseException:
            self.limit.release()
            raise
        self._episodes[name] = stored
        return await self._store_result(name, stored, stored.episode.observe())

    async def step(self, data: JsonMapping) -> JsonObject:
        """Act in an episode; return observation, reward and done."""
        name, stored = self._find(data)
        action = data.get("action")
        if not isinstance(action, Mapping):
            raise RefusedError('a step must be {"action": {…}}, optionally with "episode_id"', "VALIDATION_ERROR")
        # Two steps at a time would both wait for the same next observation.
        async with stored.lock:
            stored.last_used = asyncio.get_running_loop().time()
            return await self._store_result(name, stored, stored.episode.act(action))

    async def state(self, data: JsonMapping) -> JsonObject:
        """Return the state of an episode."""
        if not self._episodes and not data.get("episode_id"):
            return NO_EPISODE
        _, stored = self._find(data)
        return stored.episode.state

    async def close(self) -> None:
        """End every episode."""
        for name in list(self._episodes):
            await self._end(name)

    async def _store_result(self, name: str, stored: _StoredEpisode, observing: Any) -> JsonObject:
        try:
            result = await observing
        except RefusedError:
            raise
        except BaseException:
            await self._end(name, stored)
            raise
        if result["done"]:
            await self._end(name, stored)
        return {**result, "metadata": {**result.get("metadata", {}), "episode_id": name}}

    def _find(self, data: JsonMapping) -> tuple[str, _StoredEpisode]:
        name = str(data.get("episode_id") or next(reversed(self._episodes), ""))
        if name not in self._episodes:
            episode = f"episode '{name}'" if name else "episode"
            raise RefusedError(f"no {episode} is active: it has ended, or has not been begun by reset", "NOT_FOUND")
        return name, self._episodes[name]

    async def _end(self, name: str, expected: _StoredEpisode | None = None) -> None:
        """End an episode; with `expected`, only if it is still this episode, since another may have taken over the id."""
        stored = self._episodes.get(name)
        if stored is not None and expected in (None, stored):
            del self._episodes[name]
            self.limit.release()
            await stored.episode.close()


def _handler(method: Callable[[JsonMapping], Any]) -> Any:
    """Return a request handler for a method; a refusal becomes a response with OpenEnv's status code."""

    async def handle(request: web.Request) -> web.Response:
        try:
            result = await method(await _data(request))
            return json_response(result)
        except RefusedError as error:
            body = {"detail": str(error), "code": error.code}
            return json_response(body, STATUS.get(error.code, 500))

    return handle


async def _data(request: web.Request) -> JsonMapping:
    if request.method == "GET":
        return dict(request.query)
    text = await request.text()
    try:
        data = json.loads(text) if text.strip() else {}
    except (ValueError, *UNREADABLE) as error:
        raise RefusedError(f"the body is not JSON: {error}", "VALIDATION_ERROR") from error
    if not isinstance(data, dict):
        raise RefusedError("the body is not a JSON object", "VALIDATION_ERROR")
    return data
