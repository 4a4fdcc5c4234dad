"""Environments that an OpenEnv server has, played over its WebSocket protocol."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec

from rove.core.config import check_positive
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, Error, InfraError, ToolParseError
from rove.core.messages import Messages, ToolMessage, UserMessage, text_of
from rove.core.state import State
from rove.envs.environment import cleanup, teardown
from rove.envs.multi_turn import MultiTurnEnv
from rove.integrations.environments.open_env_wire import RefusedError, Session
from rove.rubrics import Rubric
from rove.tools.tool import call_arguments, call_id, call_name

TOOL = "act"
"""The tool that an action is, with `as_tool`."""


def show_fields(observation: Mapping[str, Any]) -> str:
    """An observation's fields, `metadata` left out: the text itself where there is one field that is a text.

    So it is for servers of rove, which tell `messages` and `tools` beside the `text`.
    """
    fields = {name: value for name, value in observation.items() if name != "metadata" and value is not None}
    if fields.keys() <= {"text", "messages", "tools"}:
        fields = {"text": fields.get("text", "")}
    if len(fields) == 1 and isinstance(value := next(iter(fields.values())), str):
        return value
    return "\n".join(f"{name}: {_short(value)}" for name, value in fields.items())


class OpenEnvEnv(MultiTurnEnv):
    """The model acts in an environment of an OpenEnv server: every turn of it is an action, the observation the reply.

    rove speaks the protocol itself; the `openenv` package is not needed. Where actions have one field that is a required text,
    the model's answer is that text; otherwise it is asked for a JSON object, and told what is wrong with one. With `as_tool` it
    calls the tool `act` instead, whose arguments are the action's fields. The siblings of a group reset with the same seed.
    The reward `episode_reward` is the sum of the steps' rewards. Metrics:
    `episode_steps`, `finished`, `invalid_actions` (as a share of the turns). In the state: `openenv_state` is the last answer.

    Args:
        base_url: of the server, like http://localhost:8000.
        prompt_renderer: observation → text for the model. Default: its fields (`show_fields`).
        action_parser: text → action, raising ValueError (with what to say to the model) where there is none. Default: by
            the server's schema, as above.
        as_tool: whether an action is a call of a tool, with the fields and types of the server's schema.
        instructions: what the model reads first. Default: the server's description of the environment.
        num_train_examples, num_eval_examples: episodes in the datasets.
        seed: of the episodes; each reset gets one of its own.
        reset_args: further arguments of every reset.
        headers: of every request.
        call_seconds: for an answer of the server.
        capacity_seconds: how long to wait for a server that has no room for another session (they are made for one unless told
            otherwise).
        Everything else: see `MultiTurnEnv`. `max_turns` is 50 unless given.

    Raises:
        ConfigError: an argument is out of range, or both as_tool and action_parser are given.
    """

    def __init__(
        self,
        base_url: str,
        prompt_renderer: Callable[[Mapping[str, Any]], str] = show_fields,
        action_parser: Callable[[str], dict[str, Any]] | None = None,
        as_tool: bool = False,
        instructions: str | None = None,
        num_train_examples: int = 1000,
        num_eval_examples: int = 100,
        seed: int = 0,
        reset_args: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        call_seconds: float = 60.0,
        capacity_seconds: float = 600.0,
        **kwargs: Any,
    ):
        self.num_train_examples, self.num_eval_examples = num_train_examples, num_eval_examples
        self.call_seconds, self.capacity_seconds = call_seconds, capacity_seconds
        check_positive(self, "num_train_examples", "num_eval_examples", "call_seconds", "capacity_seconds")
        if as_tool and action_parser is not None:
            raise ConfigError("action_parser reads texts, and as_tool has actions that are none; expected one of them")
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

    def _rows(self, count: int, seed: str) -> Iterator[dict[str, Any]]:
        for position in range(count):
            yield {"question": self.instructions or "", "info": {"seed": derive_seed(seed, position) % (1 << 31)}}

    async def setup_state(self, state: State, **kwargs: Any) -> None:
        """Begin an episode in a session of its own."""
        state.update(session=None, openenv_rewards=[], openenv_invalid=0, openenv_done=False)
        server = await self._connected()
        session = state["session"] = Session(server.http, self.base_url)
        data = {"seed": state["info"]["seed"], **self.reset_args}
        told = await session.reset(self.call_seconds, self.capacity_seconds, **data)
        state.update(openenv_state=told, openenv_server=server)
        if self.as_tool:
            state["tools"] = [server.tool]
        about = self.instructions or server.about
        first = "\n\n".join(part for part in (about, self._asked(server), self._read(told)) if part)
        state["prompt"] = [*state["prompt"][:-1], UserMessage(first)]

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> str | Messages:
        """Do what the model said, and show what came of it."""
        server: _Server = state["openenv_server"]
        if not self.as_tool:
            said = text_of(messages[-1])
            text = await self._act(lambda: (self.action_parser or server.action)(said), state)
            if state["openenv_done"]:
                state["final_env_response"] = text
            return text
        calls = messages[-1].get("tool_calls") or []
        if not calls:
            state["openenv_invalid"] += 1
            return [UserMessage(f"That is no action. {self._asked(server)}")]
        replies: Messages = []
        for call in calls:
            is_over = state["openenv_done"]
            text = "The episode is over." if is_over else await self._act(functools.partial(_arguments, call), state)
            replies.append(ToolMessage(text, call_id(call)))
        if state["openenv_done"]:
            state["final_env_response"] = replies
        return replies

    async def _act(self, read: Callable[[], dict[str, Any]], state: State) -> str:
        """Do what `read` returns, and what came of it; where that raises ValueError, what is wrong."""
        session: Session = state["session"]
        server: _Server = state["openenv_server"]
        try:
            told = await session.step(read(), self.call_seconds)
        except (ValueError, ToolParseError, RefusedError) as error:
            if isinstance(error, RefusedError) and error.code != "VALIDATION_ERROR":
                raise Error(f"the server refused the action ({error.code}): {error}") from error
            state["openenv_invalid"] += 1
            details = getattr(error, "details", None)
            return (
                f"That is no action: {error}{f' {_short(details)}' if details else ''}. {self._asked(server)}".strip()
            )
        state["openenv_rewards"].append(float(told.get("reward") or 0.0))
        state["openenv_state"] = told
        text = self._read(told)
        if told.get("done"):
            state["openenv_done"] = True
            return f"{text}\nThe episode is over.".lstrip("\n")
        return text

    @cleanup
    async def end_session(self, state: State) -> None:
        """End the session, so that the server has room again."""
        if state.get("session") is not None:
            await state["session"].close()

    @teardown
    async def disconnect(self) -> None:
        """Close the connections."""
        made, self._server = self._server, None
        if made is not None and made.get_loop() is asyncio.get_running_loop():
            with suppress(InfraError, asyncio.CancelledError):
                await (await made).http.close()

    async def _connected(self) -> _Server:
        loop = asyncio.get_running_loop()
        made = self._server
        if made is None or made.get_loop() is not loop or (made.done() and (made.cancelled() or made.exception())):
            made = self._server = loop.create_task(_Server.of(self.base_url, self.headers, self.call_seconds))
        return await asyncio.shield(made)

    def _read(self, told: Mapping[str, Any]) -> str:
        return self.prompt_renderer(told.get("observation") or {})

    def _asked(self, server: _Server) -> str:
        if self.as_tool:
            return f"Act by calling the tool {TOOL}."
        if self.action_parser is not None or server.field is not None:
            return ""
        return f"Answer with a JSON object of this form: {json.dumps(server.schema)}"


class _Server:
    """What a server tells of itself, and the connections to it."""

    def __init__(self, http: aiohttp.ClientSession, about: str, schema: Mapping[str, Any]):
        self.http, self.about = http, about
        properties = {name: value for name, value in schema.get("properties", {}).items() if name != "metadata"}
        required = [name for name in schema.get("required", []) if name != "metadata"]
        self.schema = {"properties": properties, "required": required}
        parameters = {"type": "object", **self.schema}
        parameters |= {"$defs": schema["$defs"]} if "$defs" in schema else {}
        function = {"name": TOOL, "description": str(schema.get("description") or "Act."), "parameters": parameters}
        self.tool = {"type": "function", "function": function}
        """An action as a tool."""
        texts = [name for name in required if properties.get(name, {}).get("type") == "string"]
        self.field = texts[0] if texts == required and len(required) == 1 else None
        """The one text that an action is, if it is that."""

    @classmethod
    async def of(cls, url: str, headers: Mapping[str, str], seconds: float) -> _Server:
        """Ask a server.

        Raises:
            InfraError: it cannot be reached, or is no OpenEnv server.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=seconds)
        http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=dict(headers), timeout=limits)
        try:
            async with asyncio.timeout(seconds):
                schema, metadata = [await _get(http, f"{url}/{name}") for name in ("schema", "metadata")]
            return cls(http, str(metadata.get("description") or ""), schema["action"])
        except BaseException as error:
            await http.close()
            if isinstance(error, (aiohttp.ClientError, OSError, ValueError, LookupError, AttributeError, TypeError)):
                said = f"{type(error).__name__}: {error}"
                raise InfraError(f"no OpenEnv server can be reached at {url}: {said}") from error
            raise

    def action(self, text: str) -> dict[str, Any]:
        """The action that an answer is.

        Raises:
            ValueError: it is none.
        """
        text = text.rpartition("</think>")[2].strip()
        if self.field is not None:
            return {self.field: text}
        fenced = re.findall(r"```(?:json)?\s*(.*?)```", text, flags=re.DOTALL)
        begin, end = text.find("{"), text.rfind("}")
        try:
            value = json.loads(fenced[-1] if fenced else text[begin : end + 1])
        except json.JSONDecodeError as error:
            raise ValueError(f"not a JSON object ({error})") from error
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return value


def _arguments(call: Any) -> dict[str, Any]:
    """The action that a call is.

    Raises:
        ValueError, ToolParseError: it is none.
    """
    if call_name(call) != TOOL:
        raise ValueError(f"there is no tool '{call_name(call)}'")
    return call_arguments(call)


async def _get(http: aiohttp.ClientSession, url: str) -> Any:
    async with http.get(url) as response:
        response.raise_for_status()
        return msgspec.json.decode(await response.read())


def episode_reward(state: State) -> float:
    """The sum of the steps' rewards."""
    return sum(state["openenv_rewards"])


def episode_steps(state: State) -> float:
    """Actions that the server took."""
    return float(len(state["openenv_rewards"]))


def finished(state: State) -> float:
    """1 where the episode came to its end."""
    return float(state["openenv_done"])


def invalid_actions(state: State) -> float:
    """Actions that were none, as a share of the turns, at most 1."""
    return min(1.0, state["openenv_invalid"] / max(1, len(state["trajectory"])))


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
