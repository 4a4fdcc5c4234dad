"""Handle requests in the formats of their APIs, with one JSON response or a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec
from aiohttp import web

from rove.core.errors import ConfigError, RejectedError, excerpt
from rove.core.messages import AssistantMessage, text_of
from rove.core.plain import JsonObject
from rove.core.protocols import Response, Token, checked_template_kwargs
from rove.core.records import Usage
from rove.server.request_queue import RequestQueue, tokens_of
from rove.server.validation import error_response, json_response
from rove.wire.chat import checked_messages
from rove.wire.serving import (
    ChoiceLogprobs,
    ChoiceRequest,
    Head,
    Logprobs,
    ServingRequest,
    TokenLogprob,
    Tokens,
    new_head,
    prompt_logprobs_body,
    read_body,
    usage_of,
)
from rove.wire.serving_anthropic import read_request

T = TypeVar("T")
Item = Token | str | Response | Exception


class Wire(Protocol):
    """The functions that a wire module offers to a server."""

    def read_request(self, body: object) -> ServingRequest: ...  # noqa: D102
    def response_body(  # noqa: D102
        self, head: Head, responses: Sequence[Response], usage: Usage, logprobs: ChoiceLogprobs
    ) -> JsonObject: ...
    def first_chunks(self, head: Head, index: int) -> list[JsonObject]: ...  # noqa: D102
    def text_chunks(  # noqa: D102
        self, head: Head, index: int, text: str, sent: str, logprobs: Logprobs, /
    ) -> list[JsonObject]: ...
    def last_chunks(  # noqa: D102
        self, head: Head, index: int, response: Response, sent: str, logprobs: Logprobs, earlier: Tokens = (), /
    ) -> list[JsonObject]: ...


@runtime_checkable
class UsageWire(Protocol):
    """A wire module whose streams end with token counts on request; other APIs always send token counts."""

    def usage_chunk(self, head: Head, usage: Usage) -> JsonObject: ...  # noqa: D102


@runtime_checkable
class TokenWire(Protocol):
    """A wire module whose bodies can hold token ids and the log-probabilities of prompts."""

    def with_tokens(  # noqa: D102
        self,
        body: JsonObject,
        responses: Sequence[Response],
        token_ids: bool,
        prompt_logprobs: Sequence[list[object]] | None,
    ) -> JsonObject: ...
    def chunk_with_prompt(self, chunk: JsonObject, prompt_token_ids: list[int] | None) -> JsonObject: ...  # noqa: D102


BODY_TIMEOUT_S = 60.0
"""Maximum seconds for a request's body to arrive; after that, the connection is closed."""


async def read_json(request: web.Request) -> object:
    """Return the decoded body of a request."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await request.read()
    except TimeoutError as error:
        raise RejectedError(
            408,
            f"the request's body did not arrive within {BODY_TIMEOUT_S:g} s; send it without pauses",
            "body_timeout",
        ) from error
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the body is not JSON: {error}; expected a JSON object; given: {excerpt(body, 100)}"
        ) from error


async def answer(request: web.Request, queue: RequestQueue, wire: Wire, prefix: str) -> web.StreamResponse:
    """Answer one request in the format of `wire`; response ids start with `prefix`."""
    parsed = queue.admit(wire.read_request(await read_json(request)))
    head = new_head(prefix, parsed.model)
    if parsed.stream:
        return await _Stream(request, queue, wire, head, parsed).run()
    responses = await queue.respond_all(parsed.choices)
    logprobs = prompt_scores = None
    if parsed.logprobs is not None:
        list_tokens = _with_prompt if parsed.echo else _sampled_only
        logprobs = [await _yielding(list_tokens, queue, response) for response in responses]
    if parsed.prompt_logprobs:
        prompt_scores = [await _yielding(_prompt_scores, queue, response) for response in responses]
    echoed: list[Response] = []
    for choice, response in zip(parsed.choices, responses):
        if parsed.echo:
            text = queue.prompt_text(choice) + text_of(response.message)
            response = msgspec.structs.replace(response, message=AssistantMessage(text))
        echoed.append(response)

    def build_response() -> web.Response:
        body = wire.response_body(head, echoed, usage_of(responses, parsed.n), logprobs)
        if parsed.prompt_logprobs or parsed.return_token_ids:
            assert isinstance(wire, TokenWire)
            body = wire.with_tokens(body, responses, parsed.return_token_ids, prompt_scores)
        return json_response(body)

    if logprobs is None and prompt_scores is None:
        return build_response()
    return await asyncio.to_thread(build_response)  # the tokens of many long prompts take seconds


async def _yielding(list_tokens: Callable[[RequestQueue, Response], T], queue: RequestQueue, response: Response) -> T:
    """Let other requests run, and then list the tokens of a response."""
    await asyncio.sleep(0)
    return list_tokens(queue, response)


def _sampled_only(queue: RequestQueue, response: Response) -> list[TokenLogprob]:
    return queue.token_logprobs(tokens_of(response))


def _prompt_scores(queue: RequestQueue, response: Response) -> list[Any]:
    return prompt_logprobs_body(queue.prompt_token_logprobs(response))


def _with_prompt(queue: RequestQueue, response: Response) -> list[TokenLogprob]:
    """Return the tokens of the prompt and the sampled tokens."""
    prompt = queue.prompt_token_logprobs(response)
    characters = sum(len(token.token) for token in prompt)
    return [*prompt, *queue.token_logprobs(tokens_of(response), characters)]


class _Choice:
    """The parts of one choice that have been sent."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens = 0
        self.characters = 0
        """Number of characters of the sent tokens, decoded one by one."""
        self.waiting: list[Token] = []
        """Tokens to send with the next piece of text."""
        self.earlier: list[TokenLogprob] = []
        """Tokens that were sent, if log-probabilities were requested."""


class _Stream:
    """A response as server-sent events. The status is sent with the first event, so that a rejected request has a 4xx status."""

    def __init__(self, request: web.Request, queue: RequestQueue, wire: Wire, head: Head, parsed: ServingRequest):
        self.request = request
        self.queue = queue
        self.wire = wire
        self.head = head
        self.parsed = parsed
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        headers["X-Accel-Buffering"] = "no"  # nginx would hold events back until its buffer is full
        self.reply = web.StreamResponse(headers=headers)
        self.choices = [_Choice() for _ in parsed.choices]
        self._items: asyncio.Queue[tuple[int, Item]] = asyncio.Queue()
        self._sent = 0

    async def run(self) -> web.StreamResponse:
        tasks = [asyncio.create_task(self._respond(i, choice)) for i, choice in enumerate(self.parsed.choices)]
        try:
            index, item = await self._items.get()
            if isinstance(item, Exception):
                raise item
            with suppress(ConnectionError):  # the HTTP client has disconnected
                await self.reply.prepare(self.request)
                await self._write_events(index, item)
                await self.reply.write_eof()
            return self.reply
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _respond(self, index: int, choice: ChoiceRequest) -> None:
        def emit(item: Item) -> None:
            self._items.put_nowait((index, item))

        needs_tokens = self.parsed.logprobs is not None or self.parsed.return_token_ids
        request = msgspec.structs.replace(
            choice.request,
            on_text=None if self.parsed.is_token_stream else emit,
            on_token=emit if needs_tokens else None,
        )
        try:
            item: Item = await self.queue.respond(msgspec.structs.replace(choice, request=request))
        except Exception as error:  # sent as an event, unless it is the first item: then the status can still say it
            item = error
        emit(item)

    async def _write_events(self, index: int, item: Item) -> None:
        for i in range(len(self.parsed.choices)):
            await self._send(*self.wire.first_chunks(self.head, i))
        responses: dict[int, Response] = {}
        while True:
            if isinstance(item, Exception):
                await self._send(error_response(item, self.parsed.api)[1])
                return
            if isinstance(item, Response):
                responses[index] = item
            await self._send(*self._chunks(index, item))
            if len(responses) == len(self.parsed.choices):
                break
            index, item = await self._items.get()
        if self.parsed.include_usage and isinstance(self.wire, UsageWire):
            usage = usage_of([responses[i] for i in sorted(responses)], self.parsed.n)
            await self._send(self.wire.usage_chunk(self.head, usage))
        if not self.parsed.api:
            await self.reply.write(b"data: [DONE]\n\n")

    def _chunks(self, index: int, item: Token | str | Response) -> list[JsonObject]:
        """Return the events for one item of a choice; a token waits for the text that contains it."""
        choice = self.choices[index]
        if isinstance(item, Response):
            choice.waiting = tokens_of(item)[choice.tokens :]
            earlier = choice.earlier
            tokens, ids = self._tokens(choice)
            chunks = self.wire.last_chunks(self.head, index, item, choice.text, tokens, earlier)
            return self._with_ids(chunks, ids, item)
        if isinstance(item, Token):
            choice.waiting.append(item)
            if not self.parsed.is_token_stream:
                return []
            item = ""
        sent = choice.text
        choice.text += item
        tokens, ids = self._tokens(choice)
        return self._with_ids(self.wire.text_chunks(self.head, index, item, sent, tokens), ids)

    def _tokens(self, choice: _Choice) -> tuple[Logprobs, list[int]]:
        """Return the waiting tokens, if log-probabilities were requested, and their ids."""
        ids = [token.id for token in choice.waiting]
        choice.tokens += len(ids)
        sent = None
        if self.parsed.logprobs is not None:
            sent = self.queue.token_logprobs(choice.waiting, choice.characters)
            choice.characters += sum(len(token.token) for token in sent)
            # The Responses API repeats all tokens in its last events, the others do not.
            choice.earlier = [*choice.earlier, *sent] if self.parsed.api == "responses" else []
        choice.waiting = []
        return sent, ids

    def _with_ids(self, chunks: list[JsonObject], ids: list[int], response: Response | None = None) -> list[JsonObject]:
        """Return the chunks of a choice with token ids, if they were requested; the last chunk also has the prompt's ids."""
        if not self.parsed.return_token_ids or not chunks:
            return chunks
        with_ids: list[JsonObject] = []
        for i, chunk in enumerate(chunks):
            chunk_ids = ids if i == 0 else []
            choices = [{**choice, "token_ids": chunk_ids} for choice in chunk["choices"]]
            with_ids.append({**chunk, "choices": choices})
        if response is not None and isinstance(self.wire, TokenWire):
            prompt = None if response.tokens is None else list(response.tokens.prompt_ids)
            with_ids[-1] = self.wire.chunk_with_prompt(with_ids[-1], prompt)
        return with_ids

    async def _send(self, *chunks: JsonObject) -> None:
        for chunk in chunks:
            if self.parsed.api == "responses":
                chunk = {**chunk, "sequence_number": self._sent}
            name = f"event: {chunk['type']}\n".encode() if self.parsed.api else b""
            await self.reply.write(name + b"data: " + msgspec.json.encode(chunk) + b"\n\n")
            self._sent += 1


class _Tokenize(msgspec.Struct):
    model: str = ""
    prompt: str | None = None
    messages: list[JsonObject] | None = None
    tools: list[JsonObject] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: JsonObject | None = None


class _Detokenize(msgspec.Struct):
    tokens: list[int]
    model: str = ""


async def tokenize(request: web.Request, queue: RequestQueue) -> web.Response:
    """Handle `{"prompt": text}` or `{"messages": […], "tools": […]}` → `{"tokens": ids, "count": number of ids}`.

    The ids of messages end where the model's response starts, unless `add_generation_prompt` is false.
    """
    body = read_body(await read_json(request), _Tokenize)
    queue.resolve_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        number = "neither" if body.prompt is None else "both"
        raise ConfigError(
            f"{number} of prompt and messages given; expected exactly one of them: a text or a list of messages"
        )
    if body.prompt is not None:
        ids = queue.renderer.text_ids(body.prompt, context=queue.context)
    else:
        ids = queue.renderer.prompt_ids(
            checked_messages(body.messages or []),
            tools=body.tools,
            context=queue.context,
            generation_prompt=body.add_generation_prompt,
            template_kwargs=checked_template_kwargs(body.chat_template_kwargs),
        )
    return json_response({"tokens": ids, "count": len(ids)})


async def count_tokens(request: web.Request, queue: RequestQueue) -> web.Response:
    """Handle `POST /v1/messages/count_tokens` of Anthropic: a Messages body without `max_tokens` → `{"input_tokens": count}`."""
    body = await read_json(request)
    parsed = read_request({"max_tokens": 1, **body} if isinstance(body, dict) else body)
    queue.resolve_model(parsed.model)
    model_request = parsed.choices[0].request
    ids = queue.renderer.prompt_ids(model_request.messages, tools=model_request.tools, context=queue.context)
    return json_response({"input_tokens": len(ids)})


async def detokenize(request: web.Request, queue: RequestQueue) -> web.Response:
    """Handle `{"tokens": ids}` → `{"prompt": text}`; special tokens are written out."""
    body = read_body(await read_json(request), _Detokenize)
    queue.resolve_model(body.model)
    queue.check_ids(body.tokens)
    return json_response({"prompt": queue.renderer.decode(body.tokens)})
