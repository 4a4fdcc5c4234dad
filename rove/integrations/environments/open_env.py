"""Environments of an OpenEnv server, over its WebSocket protocol."""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import NoneType
from typing import Any

import aiohttp
import msgspec

from rove.core.checks import check_values
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, Error, InfraError, ToolParseError, excerpt
from rove.core.messages import Messages, ToolMessage, UserMessage, call_arguments, call_id, call_name, text_of
from rove.core.plain import UNREADABLE, JsonMapping, JsonObject, JsonValue, Row, is_object
from rove.core.ranges import PositiveInt, Seconds
from rove.core.state import State, bookkeeping
from rove.envs.environment import cleanup, teardown
from rove.envs.multi_turn import MultiTurnEnv
from rove.rubrics import Rubric
from rove.rubrics.parser import visible_response

TOOL = "act"
"""Name of the tool for actions if `as_tool` is set."""


def show_fields(observation: JsonMapping) -> str:
    """Return the fields of an observation without `metadata`; the text alone if the only field is a string.

    If the only other field is `text`, `messages` and `tools` are omitted, too: `text` contains the text of the messages.
    """
    fields = {name: value for name, value in observation.items() if value is not None}
    fields.pop("metadata", None)
    if fields.keys() <= {"text", "messages", "tools"}:
        fields = {"text": fields.get("text", "")}
    if len(fields) == 1:
        [value] = fields.values()
        if isinstance(value, str):
            return value
    return "\n".join(f"{name}: {_to_text(value)}" for name, value in fields.items())


class OpenEnvEnv(MultiTurnEnv):
    """An environment on an OpenEnv server: each model turn is an action, and the observation is the environment's response.

    rove implements the protocol; the `openenv` package is not needed. If actions have one required string field, the model's
    answer is its value; otherwise, the model must write a JSON object, and gets an error message if the object is
    invalid. With `as_tool`, the model calls the tool `act`, whose arguments are the action's fields. All rollouts of a
    group reset with the same seed. The reward `episode_reward` is the sum of the steps' rewards. Metrics:
    `episode_steps`, `finished`, `invalid_actions` (share of the turns). State key: `openenv_state` is the server's last
    response.

        env = rove.OpenEnvEnv("http://localhost:8000", max_turns=20)

    Args:
        base_url: URL of the server, like http://localhost:8000.
        prompt_renderer: observation → text for the model. Default: its fields (`show_fields`).
        action_parser: text → action, raising ValueError (with a message for the model) if there is none. Default: by the
            server's schema, as described above.
        as_tool: whether an action is a tool call, with the fields and types of the server's schema.
        instructions: first text of the prompt. Default: the server's description of the environment.
        num_train_examples, num_eval_examples: episodes in the datasets.
        seed: seed of the episodes; each reset gets another one derived from it.
        reset_args: further arguments of every reset.
        headers: headers of every request.
        call_seconds: maximum seconds for a response of the server.
        capacity_seconds: maximum seconds to wait for a server that has no capacity for another session (by default OpenEnv
            servers have one session).
        Everything else: see `MultiTurnEnv`. The default of `max_turns` is 50.

    Raises:
        ConfigError: an argument is out of range, or both as_tool and action_parser are given.
    """

    def __init__(
        self,
        base_url: str,
        prompt_renderer: Callable[[JsonMapping], str] = show_fields,
        action_parser: Callable[[str], JsonObject] | None = None,
        as_tool: bool = False,
        instructions: str | None = None,
        num_train_examples: int = 1000,
        num_eval_examples: int = 100,
        seed: int = 0,
        reset_args: JsonMapping | None = None,
        headers: Mapping[str, str] | None = None,
        call_seconds: float = 60.0,
        capacity_seconds: float = 600.0,
        **kwargs: Any,
    ):
        self.num_train_examples, self.num_eval_examples = num_train_examples, num_eval_examples
        self.call_seconds, self.capacity_seconds = call_seconds, capacity_seconds
        check_values(self, num_train_examples=PositiveInt, num_eval_examples=PositiveInt)
        check_values(self, call_seconds=Seconds, capacity_seconds=Seconds)
        if as_tool and action_parser is not None:
            raise ConfigError(
                "action_parser parses text, but with as_tool actions are tool calls; pass only one of them"
            )
        self.base_url, self.as_tool = base_url.rstrip("/"), as_tool
        self.prompt_renderer, self.action_parser, self.instructions = prompt_renderer, action_parser, instructions
        self.reset_args, self.headers = dict(reset_args or {}), dict(headers or {})
        self._server: asyncio.Task[_Server] | None = None
        rubric = Rubric([episode_reward])
        for metric in (episode_steps, finished, invalid_actions):
            rubric.add_metric(metric)
        super().__init__(
            dataset=lambda: self._rows(num_train_examples, f"{seed}:train"),
            eval_dataset=lambda: self._rows(num_eval_examples, f"{seed}:eval"),
            **{"max_turns": 50, "rubric": rubric, **kwargs},
        )

    def check_reachable(self) -> None:
        """Check that a server responds.

        Raises:
            ConfigError: The URL is not one of HTTP, or nothing responds there.
        """
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"the URL of the OpenEnv server is '{self.base_url}'; expected http://HOST:PORT")
        try:
            with urllib.request.urlopen(f"{self.base_url}/health", timeout=self.call_seconds):
                return
        except urllib.error.HTTPError as response:  # a server that has no such route responds nevertheless
            response.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ConfigError(
                f"no OpenEnv server responds at {self.base_url} ({error}); start it first, such as: rove serve --openenv ENV"
            ) from error

    def _rows(self, count: int, seed: str) -> Iterator[Row]:
        for position in range(count):
            yield {"question": self.instructions or "", "info": {"seed": derive_seed(seed, position) % (1 << 31)}}

    async def setup_state(self, state: State, **kwargs: Any) -> None:
        """Begin an episode in a new session."""
        state.update(session=None, openenv_rewards=[], openenv_invalid=0, openenv_done=False)
        server = await self._connected()
        session = state["session"] = Session(server.http, self.base_url)
        data = {"seed": state["info"]["seed"], **self.reset_args}
        result = await session.reset(self.call_seconds, self.capacity_seconds, **data)
        state.update(openenv_state=result, openenv_server=server)
        if self.as_tool:
            state["tools"] = [server.tool]
        description = self.instructions or server.description
        parts = (description, self._instructions_for(server), self._read(result))
        text = "\n\n".join(filter(None, parts))
        state["prompt"] = [*state["prompt"][:-1], UserMessage(text)]

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> str | Messages:
        """Execute the model's action and return the observation."""
        server: _Server = state["openenv_server"]
        if not self.as_tool:
            answer = text_of(messages[-1])
            text = await self._act(lambda: (self.action_parser or server.action)(answer), state)
            if state["openenv_done"]:
                state["final_env_response"] = text
            return text
        calls = messages[-1].get("tool_calls") or []
        if not calls:
            state["openenv_invalid"] += 1
            return [UserMessage(f"Your message does not contain a tool call. {self._instructions_for(server)}")]
        replies: Messages = []
        for call in calls:
            # Every call needs a reply, also those after the call that ended the episode.
            text = "The episode is over."
            if not state["openenv_done"]:
                text = await self._act(functools.partial(_tool_action, call), state)
            replies.append(ToolMessage(text, call_id(call)))
        if state["openenv_done"]:
            state["final_env_response"] = replies
        return replies

    async def _act(self, read: Callable[[], JsonObject], state: State) -> str:
        """Execute the action that `read` returns; return the observation, or why the action is invalid."""
        session: Session = state["session"]
        server: _Server = state["openenv_server"]
        try:
            result = await session.step(read(), self.call_seconds)
        # Only a refused action is the model's mistake; any other refusal is the server's, and no reason for a low reward.
        except (ValueError, ToolParseError, RefusedError) as error:
            reason = str(error)
            if isinstance(error, RefusedError):
                if error.code != "VALIDATION_ERROR":
                    raise Error(f"the server refused the action ({error.code}): {error}") from error
                if error.details:
                    reason = f"{error} {_to_text(error.details)}"
            state["openenv_invalid"] += 1
            return f"This is not a valid action: {reason}. {self._instructions_for(server)}".strip()
        state["openenv_rewards"].append(float(result.get("reward") or 0.0))
        state["openenv_state"] = result
        text = self._read(result)
        if result.get("done"):
            state["openenv_done"] = True
            return f"{text}\nThe episode is over.".lstrip("\n")
        return text

    @cleanup
    async def end_session(self, state: State) -> None:
        """End the session, so that the server has capacity again."""
        if state.get("session") is not None:
            await state["session"].close()

    @teardown
    async def disconnect(self) -> None:
        """Close the connections."""
        server_task, self._server = self._server, None
        # The connections of another event loop, which has ended, cannot be closed from this one.
        if server_task is not None and server_task.get_loop() is asyncio.get_running_loop():
            with suppress(InfraError, asyncio.CancelledError):
                await (await server_task).http.close()

    async def _connected(self) -> _Server:
        loop = asyncio.get_running_loop()
        connecting = self._server
        if connecting is None or connecting.get_loop() is not loop or _has_failed(connecting):
            connecting = loop.create_task(_Server.connect(self.base_url, self.headers, self.call_seconds))
            self._server = connecting
        # All rollouts wait for the same task, so that the cancellation of one must not cancel it.
        return await asyncio.shield(connecting)

    def _read(self, result: JsonMapping) -> str:
        return self.prompt_renderer(result.get("observation") or {})

    def _instructions_for(self, server: _Server) -> str:
        if self.as_tool:
            return f"Call the tool {TOOL} to take an action."
        if self.action_parser is not None or server.field is not None:
            return ""
        return f"Answer with a JSON object that matches this schema: {json.dumps(server.schema)}"


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


class _Server:
    """The server's description and schema, and the HTTP connections to it."""

    def __init__(self, http: aiohttp.ClientSession, description: str, schema: JsonMapping):
        self.http, self.description = http, description
        # Every OpenEnv action has the optional field `metadata`, which is not for the model.
        properties = {name: value for name, value in schema.get("properties", {}).items() if name != "metadata"}
        required = [name for name in schema.get("required", []) if name != "metadata"]
        self.schema = {"properties": properties, "required": required}
        parameters = {"type": "object", **self.schema}
        if "$defs" in schema:
            parameters["$defs"] = schema["$defs"]
        tool_description = str(schema.get("description") or "Take an action in the environment.")
        function = {"name": TOOL, "description": tool_description, "parameters": parameters}
        self.tool = {"type": "function", "function": function}
        """Definition of the tool for actions."""
        self.field: str | None = None
        """The name of the field, if actions have a single required string field."""
        if len(required) == 1 and properties.get(required[0], {}).get("type") == "string":
            self.field = required[0]

    @classmethod
    async def connect(cls, url: str, headers: Mapping[str, str], seconds: float) -> _Server:
        """Request a server's description and schema."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=seconds)
        http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=dict(headers), timeout=limits)
        try:
            async with asyncio.timeout(seconds):
                schema = await _get(http, f"{url}/schema")
                metadata = await _get(http, f"{url}/metadata")
            return cls(http, str(metadata.get("description") or ""), schema["action"])
        except BaseException as error:
            await http.close()
            # The last ones occur if the URL belongs to another kind of server, which responds with other JSON or none.
            if isinstance(
                error, (aiohttp.ClientError, OSError, LookupError, AttributeError, TypeError, ValueError, *UNREADABLE)
            ):
                reason = f"{type(error).__name__}: {error}"
                raise InfraError(f"cannot reach an OpenEnv server at {url}: {reason}") from error
            raise

    def action(self, text: str) -> JsonObject:
        """Return the action in an answer."""
        text = visible_response(text)  # drafts in the reasoning do not count; see docs/decisions/answers.md
        if self.field is not None:
            return {self.field: text}
        # Models write text around the object; the last fenced block is the answer after drafts.
        fenced = re.findall(r"```(?:json)?\s*(.*?)```", text, flags=re.DOTALL)
        start, end = text.find("{"), text.rfind("}") + 1
        source = fenced[-1] if fenced else text[start:end]
        try:
            value = json.loads(source)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the answer is not a JSON object ({error})") from error
        if not isinstance(value, dict):
            raise ValueError("the answer is not a JSON object")
        return value


def _tool_action(call: object) -> JsonObject:
    if call_name(call) != TOOL:
        raise ValueError(f"there is no tool '{call_name(call)}'")
    return call_arguments(call)


async def _get(http: aiohttp.ClientSession, url: str) -> JsonValue:
    async with http.get(url) as response:
        response.raise_for_status()
        return msgspec.json.decode(await response.read())


def episode_reward(state: State) -> float:
    """Sum of the steps' rewards."""
    return sum(state["openenv_rewards"])


def episode_steps(state: State) -> float:
    """Number of actions that the server executed."""
    return float(len(state["openenv_rewards"]))


def finished(state: State) -> float:
    """1 if the episode ended."""
    return float(state["openenv_done"])


def invalid_actions(state: State) -> float:
    """Invalid actions as a share of the turns, at most 1."""
    return min(1.0, state["openenv_invalid"] / max(1, len(bookkeeping(state).trajectory)))


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


MAX_MESSAGE_BYTES = 64 << 20
"""Maximum size of a message."""
CLOSE_TIMEOUT_S = 1.0
"""Time limit for closing a session."""
MIN_RETRY_DELAY_S, MAX_RETRY_DELAY_S = 0.05, 5.0
"""Delay between attempts while the server has no capacity."""


class RefusedError(Error):
    """The server refused a message; `code` is OpenEnv's name for the reason."""

    def __init__(self, message: str, code: str = "", details: JsonValue = None):
        super().__init__(message)
        self.code, self.details = code, details


class Session:
    """An environment instance at the other end of a WebSocket.

    Messages are received in the background, so that the server's pings are answered while the model generates.

    Args:
        url: URL of the server, like http://localhost:8000.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str):
        self._http, self._url = http, url
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._received: asyncio.Queue[JsonValue] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None

    async def reset(self, seconds: float, capacity_seconds: float, **data: Any) -> JsonObject:
        """Begin an episode; return observation, reward and done. Waits while the server has no capacity for another session.

        Args:
            seconds: maximum seconds for the response.
            capacity_seconds: maximum seconds to wait for capacity.
        """
        deadline = time.monotonic() + capacity_seconds
        delay = MIN_RETRY_DELAY_S
        while True:
            try:
                if self._socket is None:
                    await self._connect(seconds)
                return await self.request("reset", data, seconds)
            except RefusedError as error:
                if error.code != "CAPACITY_REACHED":
                    raise
                refusal = str(error)
            # The server closes a connection that it refuses.
            await self.close()
            if time.monotonic() > deadline:
                raise InfraError(
                    f"{self._url} had no capacity for another session within {capacity_seconds:g} s", [refusal]
                )
            # At random times: rollouts that wait in step would all arrive at once when a session ends.
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))
            delay = min(2 * delay, MAX_RETRY_DELAY_S)

    async def step(self, action: JsonObject, seconds: float) -> JsonObject:
        """Execute an action; return observation, reward and done."""
        return await self.request("step", action, seconds)

    async def request(self, kind: str, data: JsonObject, seconds: float) -> JsonObject:
        """Send a message and return the response."""
        assert self._socket is not None
        frame: JsonValue = None
        with suppress(ConnectionError):  # the server sends the reason before it closes; it is read below
            await self._socket.send_json({"type": kind, "data": data})
        try:
            async with asyncio.timeout(seconds):
                frame = await self._received.get()
        except TimeoutError as error:
            raise InfraError(f"{self._url} did not answer '{kind}' within {seconds:g} s") from error
        if frame is None:
            raise InfraError(f"{self._url} closed the session")
        result = self._checked_data(frame)
        if frame.get("type") == "error":
            message = str(result.get("message") or f"{self._url} refused '{kind}' without a message: {excerpt(frame)}")
            raise RefusedError(message, str(result.get("code", "")), result.get("errors"))
        return result

    def _checked_data(self, frame: JsonValue) -> JsonObject:
        """Return the data of a message from the server.

        Raises:
            InfraError: The message, its observation or its reward has another form than OpenEnv's.
        """
        data = (frame.get("data") or {}) if is_object(frame) else None
        if (
            is_object(data)
            and is_object(data.get("observation") or {})
            and isinstance(data.get("reward"), (int, float, NoneType))
        ):
            return data
        raise InfraError(
            f'{self._url} sent {excerpt(frame)}; expected {{"type": …, "data": {{"observation": {{…}}, "reward": number or '
            'null, "done": …}}: is it an OpenEnv server?'
        )

    async def close(self) -> None:
        """End the session, so that the server has capacity for another."""
        socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await socket.send_json({"type": "close"})
                    await socket.close()
        if self._reading is not None:
            self._reading.cancel()

    async def _connect(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                self._socket = await self._http.ws_connect(f"{self._url}/ws", max_msg_size=MAX_MESSAGE_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise InfraError(f"cannot reach an OpenEnv server at {self._url}: {reason}") from error
        self._received = asyncio.Queue()
        self._reading = asyncio.create_task(self._read(self._socket, self._received))

    async def _read(self, socket: aiohttp.ClientWebSocketResponse, received: asyncio.Queue[JsonValue]) -> None:
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    received.put_nowait(message.json())
        except (ValueError, *UNREADABLE):  # not JSON, so not an OpenEnv server
            await socket.close()
        finally:
            received.put_nowait(None)
