"""The recording proxy: model endpoints for foreign agents, one API key per rollout.

An agent that uses OpenAI's Chat Completions or Responses API, or Anthropic's Messages API, sends its model requests to the
proxy. The proxy records each response as a step of the rollout.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import chain
from typing import Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from rove.core.errors import (
    Error,
    LimitReachedError,
    OverlongPromptError,
    RejectedError,
    ToolParseError,
    ends_task,
    excerpt,
    unanswered_attempts,
)
from rove.core.messages import Message, Messages, as_message, as_messages, call_arguments, call_id, call_name, text_of
from rove.core.protocols import Request, Response, SamplingParams
from rove.core.records import TrajectoryStep
from rove.core.state import State, bookkeeping
from rove.server.app import APIS, api_handler, key_of, model_body
from rove.server.listen import base_url_of, listening
from rove.server.request_queue import RequestQueue
from rove.server.validation import json_response, refusal
from rove.wire.serving import ServingRequest

MODEL = "rove"
"""The model's name; requests may also use any other name."""
MAX_BODY = 64 << 20
"""Maximum size of a request body in bytes."""
MAX_CONCURRENT = 64
"""Maximum number of concurrent model requests of one rollout; further requests are queued."""
CANCEL_TIMEOUT_S = 2.0
"""Maximum seconds for cancelled requests to end."""


class ModelTurn(Protocol):
    """Queries the model for an agent and records the step; see `rove.envs.environment.Turn`."""

    def __call__(  # noqa: D102
        self, state: State, messages: Messages, *, agent_request: Request | None = None
    ) -> Awaitable[Message]: ...


class Access(msgspec.Struct, frozen=True):
    """A URL and an API key with which an agent reaches the model of its rollout."""

    root: str
    """URL of the server; Anthropic's packages call it the base URL."""
    api_key: str
    """Key of this rollout, valid until the rollout ends: a bearer token or Anthropic's x-api-key."""
    model: str = MODEL
    """Model name; any other name means the same model."""

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI's packages."""
        return f"{self.root}/v1"

    @property
    def keyed_root(self) -> str:
        """`root` with the key in its path, for agents that cannot send a key."""
        return f"{self.root}/k/{self.api_key}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that configure the packages of OpenAI and Anthropic."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.root,
            "ANTHROPIC_API_KEY": self.api_key,
        }


class AgentTurns:
    """A client that serves a foreign agent and records its model requests as steps of a rollout.

    If the agent sends a model response back unchanged, the recorded message replaces the response, so that its tokens are
    known. A limit of the run, a stop condition or an error ends the rollout: further requests are refused.

    Args:
        honored: Names of sampling arguments that the agent may set; the run sets the others.
    """

    max_concurrent = MAX_CONCURRENT

    def __init__(
        self, turn: ModelTurn, state: State, honored: Collection[str], is_over: Callable[[State], Awaitable[bool]]
    ):
        self.over = asyncio.Event()
        """Set once the rollout is over."""
        self.failure: BaseException | None = None
        """The error or limit that ended the rollout."""
        self.overlong: OverlongPromptError | None = None
        """The last prompt that was too long; the agent may have shortened it since then."""
        self.unanswered: list[str] = []
        """Failed attempts of the last abandoned request, one line each."""
        self._turn = turn
        self._state = state
        self._honored = honored
        self._is_over = is_over
        self._recorded: dict[str, list[TrajectoryStep]] = {}

    async def respond(self, request: Request) -> Response:
        """Return the model's response."""
        if self.over.is_set():
            raise RejectedError(403, f"the rollout is over: {self._why}; no further responses", "rollout_over")
        rollout = bookkeeping(self._state)
        rollout.tools = rollout.tools or request.tools
        agent_request = msgspec.structs.replace(request, sampling_params=self._allowed(request.sampling_params))
        messages = self._as_recorded(as_messages(request.messages))
        try:
            message = await self._turn(self._state, messages, agent_request=agent_request)
            if await self._is_over(self._state):
                self.over.set()
        except OverlongPromptError as error:
            self.overlong = error
            raise
        except BaseException as error:
            if ends_task(error):  # such as a cancellation: the agent or its time limit gave up, the rollout is not over
                self.unanswered = unanswered_attempts(error) or self.unanswered
                raise
            self._end_with(error)
            raise
        self.unanswered = []
        # By identity: the model may have given an equal message before, to another prompt.
        recorded = chain(reversed(rollout.trajectory), *map(reversed, rollout.model_roles.values()))
        step = next(step for step in recorded if step.completion[-1] is message)
        self._recorded.setdefault(_fingerprint(message), []).append(step)
        return Response(message, step.usage, step.finish_reason, step.tokens)

    async def close(self) -> None:
        """End the rollout: refuse further requests."""
        self.over.set()

    @property
    def _why(self) -> str:
        stopped = bookkeeping(self._state).stop_condition
        return excerpt(self.failure or stopped or "it has ended")

    def _end_with(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.over.set()
        if isinstance(error, LimitReachedError):
            raise RejectedError(403, f"the rollout reached a limit: {error}", str(error)) from error
        if not isinstance(error, Error):
            raise RejectedError(500, f"{type(error).__name__}: {error}") from error

    def _allowed(self, sampling: SamplingParams) -> SamplingParams:
        return SamplingParams(**{name: getattr(sampling, name) for name in self._honored})

    def _as_recorded(self, messages: Messages) -> Messages:
        recorded: Messages = []
        for message in messages:
            steps = self._recorded.get(_fingerprint(message), []) if message["role"] == "assistant" else []
            if len(steps) > 1:  # the model produced it several times: prefer the step with this prompt
                steps = [step for step in steps if step.prompt == recorded] or steps
            if steps:  # agents drop fields and rewrite arguments; the recorded message keeps its tokens
                message = as_message(steps[-1].completion[-1])
            recorded.append(message)
        return recorded


def _fingerprint(message: Message) -> str:
    """Return the parts of a model message that identify it after an agent has passed it on: text and tool calls."""
    calls = message.get("tool_calls") or []
    parts = [[call_id(call), call_name(call), _arguments(call)] for call in calls]
    return msgspec.json.encode([text_of(message), parts], order="deterministic", enc_hook=str).decode()


def _arguments(call: object) -> Any:
    try:
        return call_arguments(call)
    except (ToolParseError, LookupError, TypeError):  # the model may write arguments that are not valid JSON
        return str(call)


class _AgentQueue(RequestQueue):
    """The queue of one rollout: it accepts any model name, and required tool calls become optional."""

    def resolve_model(self, model: str) -> str:
        """Return the name unchanged."""
        return model or MODEL

    def admit(self, parsed: ServingRequest) -> ServingRequest:
        """See `RequestQueue.admit`."""
        choices = []
        for choice in parsed.choices:
            request = msgspec.structs.replace(choice.request, tool_choice=None)
            choices.append(msgspec.structs.replace(choice, request=request))
        return super().admit(msgspec.structs.replace(parsed, choices=choices))

    async def cancel_and_wait(self) -> None:
        """Cancel all requests and wait until they have ended."""
        self.cancel_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                while self.tasks:  # noqa: ASYNC110  cancelled tasks leave the set in the next iterations of the loop
                    await asyncio.sleep(0)


class Proxy:
    """One server on this machine's loopback address, for all rollouts of an environment."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        """The event loop in which the proxy runs."""
        self._queues: dict[str, _AgentQueue] = {}
        self._root = ""
        self._starting = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Listen on a free port; do nothing if the proxy already listens."""
        async with self._starting:
            if not self._root:
                runner = await self._stack.enter_async_context(listening(self._app()))
                self._root = base_url_of(runner).removesuffix("/v1")

    async def close(self) -> None:
        """Stop listening."""
        self._root = ""
        await self._stack.aclose()

    @asynccontextmanager
    async def opened(self, turns: AgentTurns) -> AsyncIterator[Access]:
        """Open access for one rollout; at the end of the `with` block the key expires and running requests are cancelled."""
        key = secrets.token_urlsafe(24)
        queue = self._queues[key] = _AgentQueue(turns, [MODEL], max_queued=1 << 16)
        try:
            yield Access(self._root, key)
        finally:
            turns.over.set()
            try:
                await queue.cancel_and_wait()
            finally:
                del self._queues[key]

    def _app(self) -> web.Application:
        async def models(request: web.Request) -> web.StreamResponse:
            return json_response({"object": "list", "data": [model_body(self._queue_of(request), MODEL)]})

        app = web.Application(middlewares=[_error_middleware], client_max_size=MAX_BODY)
        for prefix in ("/v1", "/k/{key}/v1"):
            apis = [web.post(f"{prefix}/{path}", api_handler(api, self._queue_of)) for path, api in _CHAT_APIS.items()]
            app.add_routes([*apis, web.get(f"{prefix}/models", models)])
        return app

    def _queue_of(self, request: web.Request) -> RequestQueue:
        # Agents may send another key along, such as a dummy that their package requires.
        for key in (request.match_info.get("key"), key_of(request), request.headers.get("x-api-key")):
            if key in self._queues:
                return self._queues[key]
        raise RejectedError(
            401,
            "no rollout has this API key: it is wrong or missing, or the rollout is over; send the rollout's key as "
            "'Authorization: Bearer KEY', 'x-api-key: KEY', or in the path: /k/KEY/v1/…",
            "invalid_api_key",
        )


_CHAT_APIS = {path: api for path, api in APIS.items() if path != "completions"}
"""The APIs that take conversations."""


@web.middleware
async def _error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        paths: Sequence[str] = [f"/v1/{path}" for path in (*_CHAT_APIS, "models")]
        message = f"no route {excerpt(request.path)}; expected one of {', '.join(paths)}"
        return refusal(RejectedError(404, message), request.path)
    except Exception as error:
        return refusal(error, request.path)
