"""The desk: where questions wait for a client, are asked, and are counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from rove.core.errors import ConfigError, nearest
from rove.core.messages import AssistantMessage
from rove.core.protocols import Client, InferenceEngine, Response, Token
from rove.rendering.renderer import IncrementalDetokenizer, Renderer
from rove.server.metrics import Metrics
from rove.server.validation import Refusal
from rove.wire.serving import Asked, Question, TokenLogprob, check_known


class RequestQueue:
    """One client and those who ask it, at most `client.max_concurrent` answers at a time, the others in a queue.

    Args:
        client: who answers. If it has an `engine` and a `renderer`, tokens can be asked for too.
        names: of what it serves; the first one is meant where a request names none.
        max_queued: most answers that wait.
    """

    def __init__(self, client: Client, names: Sequence[str], max_queued: int):
        self.client = client
        self.names = list(names)
        self.max_queued = max_queued
        self.metrics = Metrics()
        self.draining = False
        """Whether nobody else is let in."""
        self.idle = asyncio.Event()
        """Set while no HTTP request is open."""
        self.idle.set()
        self.started = int(time.time())
        self._cut = False
        self.asking: set[asyncio.Task[Any]] = set()
        """Tasks that wait for an answer."""
        """Those who wait for an answer."""
        self._room = asyncio.Semaphore(client.max_concurrent)
        self._texts: dict[int, str] = {}

    @property
    def renderer(self) -> Renderer:
        """The client's.

        Raises:
            ConfigError: it has none.
        """
        renderer = getattr(self.client, "renderer", None)
        if not isinstance(renderer, Renderer):
            raise ConfigError(
                f"'{self.names[0]}' is not run by this server, which therefore knows neither its tokens nor their "
                "log-probabilities; ask for text alone"
            )
        return renderer

    @property
    def engine(self) -> InferenceEngine:
        """The client's.

        Raises:
            ConfigError: it has none.
        """
        engine = getattr(self.client, "engine", None)
        if not isinstance(engine, InferenceEngine):
            raise ConfigError(f"'{self.names[0]}' takes no token ids here; send the prompt as text")
        return engine

    @property
    def context(self) -> int | None:
        """Tokens that the client's engine takes; None where nobody knows."""
        return getattr(getattr(self.client, "engine", None), "context", None)

    def named(self, model: str) -> str:
        """The name of the model that is meant.

        Raises:
            Refusal: it is not served.
        """
        if model and model not in self.names:
            raise Refusal(404, f"no model '{model}' here; {nearest(model, self.names)}", "model_not_found")
        return model or self.names[0]

    def admit(self, asked: Asked) -> Asked:
        """The same with the model's full name, if all of it can be done.

        Raises:
            Refusal: the model is not served, or too many answers wait already.
            ConfigError: it requires a tool call, which the client cannot promise; or wants tokens, and there are none; or has a
                token id that does not exist, or a field that an engine does not know.
        """
        model = self.named(asked.model)
        choice = asked.questions[0].request.tool_choice if asked.questions else None
        if choice is not None and not getattr(self.client, "forces_tool_calls", False):
            raise ConfigError(
                f"tool_choice requires a call of {', '.join(choice.names)}; expected 'none' or 'auto': "
                f"'{self.names[0]}' is a scripted policy, which cannot be forced to call tools"
            )
        if hasattr(self.client, "engine"):  # it would refuse them in Python's words
            asked = check_known(asked)
        if asked.logprobs is not None or asked.echo or asked.prompt_logprobs:
            _ = self.renderer
        for question in asked.questions:
            if question.prompt_ids is not None:
                self.check_ids(question.prompt_ids)
                _ = self.engine
        if self.metrics.queued + len(asked.questions) > self.max_queued + self.client.max_concurrent:
            raise Refusal(
                503,
                f"answers asked for: {len(asked.questions)}, waiting already: {self.metrics.queued}, most that may wait: "
                f"{self.max_queued}; ask again later",
                "queue_full",
            )
        questions = [
            msgspec.structs.replace(question, request=msgspec.structs.replace(question.request, model=model))
            for question in asked.questions
        ]
        return msgspec.structs.replace(asked, model=model, questions=questions)

    def check_ids(self, ids: Sequence[int]) -> None:
        """Refuse ids that no token has: they would fail in the middle of a batch.

        Raises:
            ConfigError: there is one, or no renderer that knows.
        """
        size = len(self.renderer.tokenizer) if hasattr(self.renderer.tokenizer, "__len__") else None  # pyright: ignore[reportArgumentType]
        wrong = next((i for i in ids if i < 0 or (size is not None and i >= size)), None)
        if wrong is not None:
            raise ConfigError(f"{wrong} is no token id of '{self.names[0]}'; expected ids from 0 to {(size or 0) - 1}")

    async def ask(self, question: Question) -> Response:
        """The answer to one question, once there is room.

        Raises:
            ConfigError, ModelError, InfraError: see `Client.respond`.
            Refusal: see `cut_off`.
        """
        task = asyncio.current_task()
        assert task is not None
        self.asking.add(task)
        try:
            return await self._ask(question)
        except asyncio.CancelledError:
            if self._cut and not task.uncancel():  # else whoever asked has gone too
                raise Refusal(503, "the server was stopped before the answer was complete") from None
            raise
        finally:
            self.asking.discard(task)

    def cut_off(self) -> None:
        """End whatever is asked; those who asked are told."""
        self._cut = True
        for task in self.asking:
            task.cancel()

    async def _ask(self, question: Question) -> Response:
        self.metrics.queued += 1
        try:
            await self._room.acquire()
        finally:
            self.metrics.queued -= 1
        self.metrics.under_way += 1
        try:
            ids = question.prompt_ids
            response = await (self.client.respond(question.request) if ids is None else self._go_on(question, ids))
        finally:
            self.metrics.under_way -= 1
            self._room.release()
        self.metrics.prompt_tokens += response.usage.prompt_tokens
        self.metrics.completion_tokens += response.usage.completion_tokens
        return response

    async def ask_all(self, questions: Sequence[Question]) -> list[Response]:
        """The answers to all of them; the first error, or being cancelled, cancels the rest."""
        if len(questions) == 1:
            return [await self.ask(questions[0])]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.ask(question)) for question in questions]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _go_on(self, question: Question, ids: list[int]) -> Response:
        request = question.request
        adapter = request.model if request.model in getattr(self.engine, "adapters", ()) else None
        speech = IncrementalDetokenizer.of(self.renderer, request, ids)
        made = await self.engine.generate(ids, request.sampling_params, request.seed, speech, adapter)
        said = self.renderer.read_text(ids, made.ids) if made.text is None else AssistantMessage(made.text)
        return Response.of(said, ids, made)

    def told(self, tokens: Iterable[Token], offset: int = 0) -> list[TokenLogprob]:
        """Sampled tokens as they are told; `offset` characters came before them."""
        made = []
        for token in tokens:
            likeliest = [TokenLogprob(self._text(id), logprob, id=id) for id, logprob in token.top or []]
            made.append(TokenLogprob(self._text(token.id), token.logprob, likeliest, token.id, offset))
            offset += len(made[-1].token)
        return made

    def prompt_text(self, question: Question) -> str:
        """The prompt of a completion as text."""
        if question.request.text is not None:
            return question.request.text
        return self.renderer.decode(question.prompt_ids or [])

    def prompt_tokens(self, response: Response) -> list[TokenLogprob]:
        """The prompt's tokens with the log-probabilities that were requested; the first one has none."""
        ids = response.tokens.prompt_ids if response.tokens else []
        logprobs: list[float | None] = [None, *(response.prompt_logprobs or [None] * (len(ids) - 1))]
        tops = [[], *(response.prompt_top_logprobs or [[]] * (len(ids) - 1))]
        made, offset = [], 0
        for id, logprob, top in zip(ids, logprobs, tops):
            likeliest = [TokenLogprob(self._text(other), value, id=other) for other, value in top]
            made.append(TokenLogprob(self._text(id), logprob, likeliest, id, offset))
            offset += len(made[-1].token)
        return made

    def _text(self, id: int) -> str:
        """A single token's text; kept, because one answer may tell a hundred thousand of them."""
        text = self._texts.get(id)
        if text is None:
            text = self._texts[id] = self.renderer.decode([id])
        return text


def tokens_of(response: Response) -> list[Token]:
    """The sampled tokens of an answer, the one that ended it included; none where they are not known."""
    if response.tokens is None:
        return []
    ids, logprobs = response.tokens.completion_ids, response.tokens.logprobs
    return [Token(*one) for one in zip(ids, logprobs, response.top_logprobs or [None] * len(ids), strict=True)]
