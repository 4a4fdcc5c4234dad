"""The queue of model requests in front of a client."""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from rove.core.errors import ConfigError, RejectedError, nearest
from rove.core.messages import AssistantMessage
from rove.core.protocols import Client, InferenceEngine, Request, Response, Token
from rove.rendering.renderer import Renderer
from rove.rendering.streaming import IncrementalDetokenizer
from rove.wire.serving import ChoiceRequest, ServingRequest, TokenLogprob, check_known

BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the latency histogram, in seconds."""


class Metrics:
    """Counters and gauges of a server."""

    def __init__(self) -> None:
        self.open = 0
        """Number of HTTP requests without a response yet."""
        self.under_way = 0
        """Number of model requests that the client is processing."""
        self.queued = 0
        """Number of model requests that wait for the client."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()

    def finished(self, route: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        self._requests[route, status] += 1
        counts = self._buckets.setdefault(route, [0] * (len(BUCKETS) + 1))
        counts[bisect_left(BUCKETS, seconds)] += 1
        self._seconds[route] += seconds  # pyright: ignore[reportArgumentType]  a Counter also adds floats

    def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield "# TYPE rove_requests_total counter"
        for (route, status), count in sorted(self._requests.items()):
            yield f'rove_requests_total{{route="{route}",status="{status}"}} {count}'
        for name, kind, value in (
            ("prompt_tokens_total", "counter", self.prompt_tokens),
            ("completion_tokens_total", "counter", self.completion_tokens),
            ("requests_open", "gauge", self.open),
            ("answers_under_way", "gauge", self.under_way),
            ("answers_queued", "gauge", self.queued),
        ):
            yield f"# TYPE rove_{name} {kind}"
            yield f"rove_{name} {value}"
        yield "# TYPE rove_request_seconds histogram"
        for route, counts in sorted(self._buckets.items()):
            total = 0
            for bound, count in zip((*BUCKETS, "+Inf"), counts, strict=True):
                total += count
                yield f'rove_request_seconds_bucket{{route="{route}",le="{bound}"}} {total}'
            yield f'rove_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}'
            yield f'rove_request_seconds_count{{route="{route}"}} {total}'


class RequestQueue:
    """A queue of requests to one client; at most `client.max_concurrent` requests run at the same time.

    Args:
        client: Client that answers the requests. Token ids and log-probabilities need its `engine` and `renderer`.
        names: Model names; a request without a name means the first.
    """

    def __init__(self, client: Client, names: Sequence[str], max_queued: int):
        self.client = client
        self.names = list(names)
        self.max_queued = max_queued
        self.metrics = Metrics()
        self.draining = False
        """Whether the server refuses new requests."""
        self.idle = asyncio.Event()
        """Set while no HTTP request is open."""
        self.idle.set()
        self.started = int(time.time())
        self._cancelled = False
        self.tasks: set[asyncio.Task[Any]] = set()
        """Tasks that wait for a response."""
        self._slots = asyncio.Semaphore(client.max_concurrent)
        self._texts: dict[int, tuple[str, bytes]] = {}

    @property
    def renderer(self) -> Renderer:
        """The client's renderer."""
        renderer = getattr(self.client, "renderer", None)
        if not isinstance(renderer, Renderer):
            raise ConfigError(
                f"'{self.names[0]}' is not run by this server, so that token ids and log-probabilities are unavailable; "
                "request text only"
            )
        return renderer

    @property
    def engine(self) -> InferenceEngine:
        """The client's engine."""
        engine = getattr(self.client, "engine", None)
        if not isinstance(engine, InferenceEngine):
            raise ConfigError(f"'{self.names[0]}' takes no token ids on this server; send the prompt as text")
        return engine

    @property
    def context(self) -> int | None:
        """Context length of the client's engine in tokens; None if unknown."""
        return getattr(getattr(self.client, "engine", None), "context", None)

    def resolve_model(self, model: str) -> str:
        """Return the requested model name; for "", return the first name."""
        if model and model not in self.names:
            raise RejectedError(404, f"no model '{model}' here; {nearest(model, self.names)}", "model_not_found")
        return model or self.names[0]

    def admit(self, parsed: ServingRequest) -> ServingRequest:
        """Check that the client can answer a request; return the request with its full model name."""
        model = self.resolve_model(parsed.model)
        tool_choice = parsed.choices[0].request.tool_choice if parsed.choices else None
        if tool_choice is not None and not getattr(self.client, "forces_tool_calls", False):
            raise ConfigError(
                f"tool_choice requires a call of {', '.join(tool_choice.names)}; expected 'none' or 'auto': "
                f"'{self.names[0]}' is a scripted policy, which cannot be forced to call tools"
            )
        if hasattr(self.client, "engine"):  # before it raises a TypeError for an unknown field
            parsed = check_known(parsed)
        # These raise if the client has no renderer or engine: before the model has worked for the answer.
        if parsed.logprobs is not None or parsed.echo or parsed.prompt_logprobs:
            _ = self.renderer
        for choice in parsed.choices:
            if choice.prompt_ids is not None:
                self.check_ids(choice.prompt_ids)
                _ = self.engine
        if self.metrics.queued + len(parsed.choices) > self.max_queued + self.client.max_concurrent:
            raise RejectedError(
                503,
                f"the request needs {len(parsed.choices)} responses, {self.metrics.queued} are queued and at most "
                f"{self.max_queued} may be; retry later",
                "queue_full",
            )
        choices = []
        for choice in parsed.choices:
            request = msgspec.structs.replace(choice.request, model=model)
            choices.append(msgspec.structs.replace(choice, request=request))
        return msgspec.structs.replace(parsed, model=model, choices=choices)

    def check_ids(self, ids: Sequence[int]) -> None:
        """Check token ids before they reach the engine, because an invalid id would make a whole batch fail."""
        tokenizer: Any = self.renderer.tokenizer
        size = len(tokenizer) if hasattr(tokenizer, "__len__") else math.inf
        for id in ids:
            if not 0 <= id < size:
                expected = f"ids from 0 to {size - 1}" if size < math.inf else "ids of 0 or more"
                raise ConfigError(f"{id} is not a token id of '{self.names[0]}'; expected {expected}")

    async def respond(self, choice: ChoiceRequest) -> Response:
        """Wait for a slot and return the client's response."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            return await self._respond(choice)
        except asyncio.CancelledError:
            if self._cancelled and not task.uncancel():  # otherwise the HTTP client has disconnected as well
                raise RejectedError(503, "the server was stopped before the response was complete") from None
            raise
        finally:
            self.tasks.discard(task)

    def cancel_all(self) -> None:
        """Cancel all running requests; their callers get status 503."""
        self._cancelled = True
        for task in self.tasks:
            task.cancel()

    async def _respond(self, choice: ChoiceRequest) -> Response:
        self.metrics.queued += 1
        try:
            await self._slots.acquire()
        finally:
            self.metrics.queued -= 1
        self.metrics.under_way += 1
        try:
            if choice.prompt_ids is None:
                response = await self.client.respond(choice.request)
            else:
                response = await self._complete(choice.request, choice.prompt_ids)
        finally:
            self.metrics.under_way -= 1
            self._slots.release()
        self.metrics.prompt_tokens += response.usage.prompt_tokens
        self.metrics.completion_tokens += response.usage.completion_tokens
        return response

    async def respond_all(self, choices: Sequence[ChoiceRequest]) -> list[Response]:
        """Return all responses, in order; the first error, or a cancellation, cancels the remaining requests."""
        if len(choices) == 1:
            return [await self.respond(choices[0])]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.respond(choice)) for choice in choices]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _complete(self, request: Request, ids: list[int]) -> Response:
        adapter = request.model if request.model in getattr(self.engine, "adapters", ()) else None
        detokenizer = IncrementalDetokenizer.of(self.renderer, request, ids)
        output = await self.engine.generate(ids, request.sampling_params, request.seed, detokenizer, adapter)
        if isinstance(output.stopped_by, str) and output.text is not None:  # cut at a stop string
            message = AssistantMessage(output.text)
        else:
            message = self.renderer.read_text(ids, output.ids, request.sampling_params.stop_token_ids or ())
        return Response.of(message, ids, output)

    def token_logprobs(self, tokens: Iterable[Token], offset: int = 0) -> list[TokenLogprob]:
        """Return sampled tokens in the wire format; `offset` is the number of characters before them."""
        listed = []
        for token in tokens:
            top = [self._token(id, logprob) for id, logprob in token.top or []]
            listed.append(self._token(token.id, token.logprob, top, offset))
            offset += len(listed[-1].token)
        return listed

    def prompt_text(self, choice: ChoiceRequest) -> str:
        """Return the prompt of a completion as text."""
        if choice.request.text is not None:
            return choice.request.text
        return self.renderer.decode(choice.prompt_ids or [])

    def prompt_token_logprobs(self, response: Response) -> list[TokenLogprob]:
        """Return the prompt's tokens with the requested log-probabilities; the first token has none."""
        ids = response.tokens.prompt_ids if response.tokens else []
        num_scored = len(ids) - 1
        logprobs: list[float | None] = [None, *(response.prompt_logprobs or [None] * num_scored)]
        tops = [[], *(response.prompt_top_logprobs or [[]] * num_scored)]
        listed, offset = [], 0
        for id, logprob, top in zip(ids, logprobs, tops):
            top_tokens = [self._token(top_id, top_logprob) for top_id, top_logprob in top]
            listed.append(self._token(id, logprob, top_tokens, offset))
            offset += len(listed[-1].token)
        return listed

    def _token(self, id: int, logprob: float | None, top: Sequence[TokenLogprob] = (), offset: int = 0) -> TokenLogprob:
        """Return a token; its text and bytes are cached because a response may list a hundred thousand tokens."""
        if id not in self._texts:
            text = self.renderer.decode([id])
            utf8 = self.renderer.token_bytes(id) if "\ufffd" in text else b""
            self._texts[id] = (text, utf8)
        text, utf8 = self._texts[id]
        return TokenLogprob(text, logprob, top, id, offset, utf8)


def tokens_of(response: Response) -> list[Token]:
    """Return the sampled tokens of a response, including the token that ended it; [] if they are unknown."""
    if response.tokens is None:
        return []
    ids, logprobs = response.tokens.completion_ids, response.tokens.logprobs
    tops = response.top_logprobs or [None] * len(ids)
    return [Token(id, logprob, top) for id, logprob, top in zip(ids, logprobs, tops, strict=True)]
