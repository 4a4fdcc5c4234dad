"""Answering a request in the words of its API, whole or as a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import msgspec
from aiohttp import web

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, text_of
from rove.core.protocols import Response, Token
from rove.core.records import Usage
from rove.server.request_queue import RequestQueue, tokens_of
from rove.server.validation import told
from rove.wire.common import excerpt
from rove.wire.serving import Asked, Head, Question, TokenLogprob, new_head, prompt_logprobs_body, usage_of

Item = Token | str | Response | Exception


class Wire(Protocol):
    """What a wire module has for those who are asked."""

    def read_request(self, body: Any) -> Asked: ...  # noqa: D102
    def response_body(  # noqa: D102
        self, head: Head, responses: Sequence[Response], usage: Usage, logprobs: Sequence[list[TokenLogprob]] | None
    ) -> dict[str, Any]: ...
    def first_chunks(self, head: Head, index: int) -> list[dict[str, Any]]: ...  # noqa: D102
    def text_chunks(  # noqa: D102
        self, head: Head, index: int, text: str, told: str, logprobs: list[TokenLogprob] | None
    ) -> list[dict[str, Any]]: ...
    def last_chunks(  # noqa: D102
        self,
        head: Head,
        index: int,
        response: Response,
        told: str,
        logprobs: list[TokenLogprob] | None,
        earlier: Sequence[TokenLogprob] = (),
    ) -> list[dict[str, Any]]: ...


@runtime_checkable
class TellsUsage(Protocol):
    """A wire module whose streams end with token counts where that is asked for; other APIs tell them anyway."""

    def usage_chunk(self, head: Head, usage: Usage) -> dict[str, Any]: ...  # noqa: D102


@runtime_checkable
class TellsTokens(Protocol):
    """A wire module whose bodies can hold token ids and the log-probabilities of prompts."""

    def with_tokens(  # noqa: D102
        self,
        body: dict[str, Any],
        responses: Sequence[Response],
        token_ids: bool,
        prompt_logprobs: Sequence[list[Any]] | None,
    ) -> dict[str, Any]: ...
    def chunk_with_prompt(  # noqa: D102
        self, chunk: dict[str, Any], prompt_token_ids: list[int] | None
    ) -> dict[str, Any]: ...


async def read_json(request: web.Request) -> Any:
    """The decoded body of a request.

    Raises:
        ConfigError: it is not JSON.
    """
    body = await request.read()
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the body is not JSON: {error}; expected a JSON object; given: {excerpt(body, 100)}"
        ) from error


def json_response(body: Any) -> web.Response:
    """JSON with status 200."""
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


async def answer(request: web.Request, desk: RequestQueue, wire: Wire, prefix: str) -> web.StreamResponse:
    """Answer one request in the words of `wire`, with an id that begins with `prefix`."""
    asked = desk.admit(wire.read_request(await read_json(request)))
    head = new_head(prefix, asked.model)
    if asked.stream:
        return await _Stream(request, desk, wire, head, asked).run()
    responses = await desk.ask_all(asked.questions)
    logprobs = None if asked.logprobs is None else [desk.told(tokens_of(response)) for response in responses]
    shown = responses
    if asked.echo:
        prompts = map(desk.prompt_text, asked.questions)
        shown = [_echoed(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        logprobs = None if logprobs is None else [_with_prompt(desk, response) for response in responses]
    body = wire.response_body(head, shown, usage_of(responses, asked.n), logprobs)
    if asked.prompt_logprobs or asked.return_token_ids:
        assert isinstance(wire, TellsTokens)
        scores = [prompt_logprobs_body(desk.prompt_tokens(one)) for one in responses] if asked.prompt_logprobs else None
        body = wire.with_tokens(body, responses, asked.return_token_ids, scores)
    return json_response(body)


def _echoed(prompt: str, response: Response) -> Response:
    """The response with its prompt in front of its text."""
    return msgspec.structs.replace(response, message=AssistantMessage(prompt + text_of(response.message)))


def _with_prompt(desk: RequestQueue, response: Response) -> list[TokenLogprob]:
    """The tokens of the prompt and those that were sampled."""
    prompt = desk.prompt_tokens(response)
    return [*prompt, *desk.told(tokens_of(response), sum(len(token.token) for token in prompt))]


class _Choice:
    """How much of one choice has been told."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens = 0
        self.characters = 0
        """Of these tokens, one by one."""
        self.waiting: list[Token] = []
        """Tokens that go with the next piece of text."""
        self.earlier: list[TokenLogprob] = []
        """Tokens that were sent, if log-probabilities were requested."""


class _Stream:
    """One answer as server-sent events. Its status is sent with the first piece, so that a refusal has a status too."""

    def __init__(self, request: web.Request, desk: RequestQueue, wire: Wire, head: Head, asked: Asked):
        self.request = request
        self.desk = desk
        self.wire = wire
        self.head = head
        self.asked = asked
        self.reply = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )
        self.choices = [_Choice() for _ in asked.questions]
        self._news: asyncio.Queue[tuple[int, Item]] = asyncio.Queue()
        self._sent = 0

    async def run(self) -> web.StreamResponse:
        questions = self.asked.questions
        tasks = [asyncio.create_task(self._ask(i, question)) for i, question in enumerate(questions)]
        try:
            first = await self._news.get()
            if isinstance(first[1], Exception):
                raise first[1]
            with suppress(ConnectionError):  # whoever listened has gone
                await self.reply.prepare(self.request)
                await self._tell(*first)
                await self.reply.write_eof()
            return self.reply
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, index: int, question: Question) -> None:
        def tell(item: Item) -> None:
            self._news.put_nowait((index, item))

        asked = self.asked
        request = msgspec.structs.replace(
            question.request,
            on_text=None if asked.by_token else tell,
            on_token=tell if asked.logprobs is not None or asked.return_token_ids else None,
        )
        try:
            item: Item = await self.desk.ask(msgspec.structs.replace(question, request=request))
        except Exception as error:
            item = error
        tell(item)

    async def _tell(self, index: int, item: Item) -> None:
        for i in range(len(self.asked.questions)):
            await self._send(*self.wire.first_chunks(self.head, i))
        responses: dict[int, Response] = {}
        while True:
            if isinstance(item, Exception):
                await self._send(told(item, self.asked.api)[1])
                return
            if isinstance(item, Response):
                responses[index] = item
            await self._send(*self._chunks(index, item))
            if len(responses) == len(self.asked.questions):
                break
            index, item = await self._news.get()
        if self.asked.include_usage and isinstance(self.wire, TellsUsage):
            usage = usage_of([responses[i] for i in sorted(responses)], self.asked.n)
            await self._send(self.wire.usage_chunk(self.head, usage))
        if not self.asked.api:
            await self.reply.write(b"data: [DONE]\n\n")

    def _chunks(self, index: int, item: Token | str | Response) -> list[dict[str, Any]]:
        """What to send of a choice's news; a token waits for the text that it is part of."""
        choice = self.choices[index]
        if isinstance(item, Response):
            choice.waiting = tokens_of(item)[choice.tokens :]
            earlier, (tokens, ids) = choice.earlier, self._tokens(choice)
            chunks = self.wire.last_chunks(self.head, index, item, choice.text, tokens, earlier)
            return self._with_ids(chunks, ids, item)
        if isinstance(item, Token):
            choice.waiting.append(item)
            if not self.asked.by_token:
                return []
            item = ""
        before, choice.text = choice.text, choice.text + item
        tokens, ids = self._tokens(choice)
        return self._with_ids(self.wire.text_chunks(self.head, index, item, before, tokens), ids)

    def _tokens(self, choice: _Choice) -> tuple[list[TokenLogprob] | None, list[int]]:
        """The tokens that go with what is told next, if they were asked for, and their ids."""
        ids = [token.id for token in choice.waiting]
        choice.tokens += len(ids)
        told = None
        if self.asked.logprobs is not None:
            told = self.desk.told(choice.waiting, choice.characters)
            choice.characters += sum(len(token.token) for token in told)
            choice.earlier = [*choice.earlier, *told] if self.asked.api == "responses" else []
        choice.waiting = []
        return told, ids

    def _with_ids(
        self, chunks: list[dict[str, Any]], ids: list[int], response: Response | None = None
    ) -> list[dict[str, Any]]:
        """The chunks of a choice with the ids of its tokens, if they were requested; the last ones have the prompt's too."""
        if not (self.asked.return_token_ids and chunks):
            return chunks
        told = [ids, *([] for _ in chunks[1:])]
        chunks = [
            {**chunk, "choices": [{**choice, "token_ids": some} for choice in chunk["choices"]]}
            for chunk, some in zip(chunks, told, strict=True)
        ]
        if response is not None and isinstance(self.wire, TellsTokens):
            prompt = None if response.tokens is None else list(response.tokens.prompt_ids)
            chunks[-1] = self.wire.chunk_with_prompt(chunks[-1], prompt)
        return chunks

    async def _send(self, *chunks: dict[str, Any]) -> None:
        for chunk in chunks:
            if self.asked.api == "responses":
                chunk = {**chunk, "sequence_number": self._sent}
            name = f"event: {chunk['type']}\n".encode() if self.asked.api else b""
            await self.reply.write(name + b"data: " + msgspec.json.encode(chunk) + b"\n\n")
            self._sent += 1
