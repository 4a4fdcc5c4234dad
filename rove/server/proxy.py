"""The recording proxy: the turns of rollouts as endpoints, each rollout's under a key of its own.

A foreign agent that speaks OpenAI's chat completions or Responses, or Anthropic's Messages, is pointed at it; every answer it
gets is a step of its rollout.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from rove.core.errors import Error, LimitReachedError, OverlongPromptError, ToolParseError, ends_task
from rove.core.messages import Message, Messages, as_message, as_messages, text_of
from rove.core.protocols import Request, Response, SamplingParams
from rove.core.records import TrajectoryStep
from rove.core.state import State
from rove.server.app import APIS, answering, key_of, model_body
from rove.server.handlers import json_response
from rove.server.listen import base_url_of, listening
from rove.server.request_queue import RequestQueue
from rove.server.validation import Refusal, refusal
from rove.tools.tool import call_arguments, call_id, call_name
from rove.wire.common import excerpt
from rove.wire.serving import Asked

MODEL = "rove"
"""The model's name, where an agent asks; any other is taken for it."""
MAX_BODY = 64 << 20
"""Bytes of a request's body."""
AT_ONCE = 64
"""Answers under way in one rollout; more wait."""
GOODBYE = 2.0
"""Seconds for those who still ask to be cut off."""


class ModelTurn(Protocol):
    """Asks the model in the name of an agent, and records the step; see `rove.envs.environment.Turn`."""

    def __call__(self, state: State, messages: Messages, *, asked: Request | None = None) -> Awaitable[Message]: ...  # noqa: D102


class Access(msgspec.Struct, frozen=True):
    """How an agent reaches the model of its rollout: by any of these URLs, with the key where the URL does not have it."""

    root: str
    """Where the server is; what Anthropic's packages call the base URL."""
    api_key: str
    """For this rollout, and as long as it lasts: a bearer token, or Anthropic's x-api-key."""
    model: str = MODEL
    """Any name means the same model."""

    @property
    def base_url(self) -> str:
        """What OpenAI's packages call so."""
        return f"{self.root}/v1"

    @property
    def keyed_root(self) -> str:
        """`root` with the key in it, for agents that cannot be given one."""
        return f"{self.root}/k/{self.api_key}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that tell the packages of both makers, and what is built on them, all that."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.root,
            "ANTHROPIC_API_KEY": self.api_key,
        }


class AgentTurns:
    """A rollout's turns as a client, which a foreign agent asks.

    An answer of the model that the agent sends back as it was is put in its place as it was recorded, so that its tokens are
    known. A limit of the run, a stop condition and whatever fails end it: nobody gets a further answer.

    Args:
        turn: asks the model, and records the step.
        state: of the rollout.
        honoured: names of sampling arguments in which the agent has its way, as `rove.rollout.over` says.
        is_over: asked after every step whether a stop condition holds.
    """

    max_concurrent = AT_ONCE

    def __init__(
        self, turn: ModelTurn, state: State, honoured: Collection[str], is_over: Callable[[State], Awaitable[bool]]
    ):
        self.over = asyncio.Event()
        """Set once there are no more answers."""
        self.failure: BaseException | None = None
        """The error or the limit that ended it."""
        self.overlong: OverlongPromptError | None = None
        """The last prompt that did not fit; the agent may have made it shorter since."""
        self.unanswered: list[str] = []
        """One line per try of a request that was given up without any answer."""
        self._turn = turn
        self._state = state
        self._honoured = honoured
        self._is_over = is_over
        self._said: dict[str, list[TrajectoryStep]] = {}

    async def respond(self, request: Request) -> Response:
        """The model's answer.

        Raises:
            Refusal: the rollout is over, or met a limit.
            ConfigError, ModelError, InfraError: the client's, see `Client.respond`.
        """
        if self.over.is_set():
            raise Refusal(403, f"the rollout is over: {self._why}; no further answers", "rollout_over")
        self._state.setdefault("tools", request.tools)
        asked = msgspec.structs.replace(request, sampling_params=self._allowed(request.sampling_params))
        messages = self._as_recorded(as_messages(request.messages))
        try:
            message = await self._turn(self._state, messages, asked=asked)
            if await self._is_over(self._state):
                self.over.set()
        except OverlongPromptError as error:
            self.overlong = error
            raise
        except BaseException as error:
            if ends_task(error):
                self.unanswered = list(getattr(error, "rove_unanswered", ())) or self.unanswered
                raise
            self._end_with(error)
            raise
        self.unanswered = []
        recorded = [self._state["trajectory"], *self._state.get("model_roles", {}).values()]
        step = next(step for steps in recorded for step in reversed(steps) if step.completion[-1] is message)
        self._said.setdefault(_fingerprint(message), []).append(step)
        return Response(message, step.usage, step.finish_reason, step.tokens)

    async def close(self) -> None:
        """No more answers."""
        self.over.set()

    @property
    def _why(self) -> str:
        stopped = self._state.get("stop_condition")
        return excerpt(self.failure or stopped or "it has ended")

    def _end_with(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.over.set()
        if isinstance(error, LimitReachedError):
            raise Refusal(403, f"the rollout has used up what it may: {error}", str(error)) from error
        if not isinstance(error, Error):
            raise Refusal(500, f"{type(error).__name__}: {error}") from error

    def _allowed(self, sampling: SamplingParams) -> SamplingParams:
        return SamplingParams(**{name: getattr(sampling, name) for name in self._honoured})

    def _as_recorded(self, messages: Messages) -> Messages:
        made: Messages = []
        for message in messages:
            steps = self._said.get(_fingerprint(message), []) if message["role"] == "assistant" else []
            if len(steps) > 1:  # it was said more than once: here, if anywhere
                steps = [step for step in steps if step.prompt == made] or steps
            made.append(as_message(steps[-1].completion[-1]) if steps else message)
        return made


def _fingerprint(message: Message) -> str:
    """What a message of the model's says, whatever becomes of it on its way through an agent: its words and its calls."""
    calls = message.get("tool_calls") or []
    told = [[call_id(call), call_name(call), _arguments(call)] for call in calls]
    return msgspec.json.encode([text_of(message), told], order="deterministic", enc_hook=str).decode()


def _arguments(call: Any) -> Any:
    try:
        return call_arguments(call)
    except (ToolParseError, LookupError, TypeError):  # a model writes anything
        return str(call)


class _AgentQueue(RequestQueue):
    """The desk of one rollout: any model's name will do, and a demand to call a tool is taken for leave to."""

    def named(self, model: str) -> str:
        """The name itself."""
        return model or MODEL

    def admit(self, asked: Asked) -> Asked:
        """See `Desk.admit`."""
        questions = [
            msgspec.structs.replace(one, request=msgspec.structs.replace(one.request, tool_choice=None))
            for one in asked.questions
        ]
        return super().admit(msgspec.structs.replace(asked, questions=questions))

    async def leave(self) -> None:
        """Cut off whoever still asks, and wait until nobody does."""
        self.cut_off()
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE):
                while self.asking:  # noqa: ASYNC110  the last of them is at work on it
                    await asyncio.sleep(0)


class Proxy:
    """One server on this machine's loopback, for all rollouts of an environment."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        """The loop that it works on."""
        self._desks: dict[str, _AgentQueue] = {}
        self._root = ""
        self._starting = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Listen, on a port that is free, unless it does.

        Raises:
            ConfigError: there is none.
        """
        async with self._starting:
            if not self._root:
                runner = await self._stack.enter_async_context(listening(self._app()))
                self._root = base_url_of(runner).removesuffix("/v1")

    async def close(self) -> None:
        """Listen no more."""
        self._root = ""
        await self._stack.aclose()

    @asynccontextmanager
    async def opened(self, turns: AgentTurns) -> AsyncIterator[Access]:
        """A way in for one rollout; when this ends whoever still asks is cut off, and the key worth nothing."""
        key = secrets.token_urlsafe(24)
        desk = self._desks[key] = _AgentQueue(turns, [MODEL], max_queued=1 << 16)
        try:
            yield Access(self._root, key)
        finally:
            turns.over.set()
            try:
                await desk.leave()
            finally:
                del self._desks[key]

    def _app(self) -> web.Application:
        async def models(request: web.Request) -> web.StreamResponse:
            return json_response({"object": "list", "data": [model_body(self._desk_of(request), MODEL)]})

        app = web.Application(middlewares=[_reception], client_max_size=MAX_BODY)
        for prefix in ("/v1", "/k/{key}/v1"):
            apis = [web.post(f"{prefix}/{path}", answering(api, self._desk_of)) for path, api in _APIS.items()]
            app.add_routes([*apis, web.get(f"{prefix}/models", models)])
        return app

    def _desk_of(self, request: web.Request) -> RequestQueue:
        """The desk of the rollout whose key a request has.

        Raises:
            Refusal: there is none.
        """
        keys = request.match_info.get("key"), key_of(request), request.headers.get("x-api-key")
        desk = next((self._desks[key] for key in keys if key in self._desks), None)
        if desk is None:
            raise Refusal(
                401,
                "no rollout has this API key: it is wrong, missing, or the rollout is over; send the one that was given as "
                "'Authorization: Bearer KEY', 'x-api-key: KEY', or in the path: /k/KEY/v1/…",
                "invalid_api_key",
            )
        return desk


_APIS = {path: api for path, api in APIS.items() if path != "completions"}
"""Those of conversations."""


@web.middleware
async def _reception(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns errors into answers."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        paths: Sequence[str] = [f"/v1/{path}" for path in (*_APIS, "models")]
        said = f"nothing at {excerpt(request.path)}; expected one of {', '.join(paths)}"
        return refusal(Refusal(404, said), request.path)
    except Exception as error:
        return refusal(error, request.path)
