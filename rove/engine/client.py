"""Client for an inference engine: it converts messages or text to tokens, and completions to messages with their exact tokens."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import msgspec

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, Message, text_of
from rove.core.protocols import Generation, InferenceEngine, Request, Response, SamplingParams
from rove.engine.constraints import grammar_of, tool_call_grammar
from rove.engine.engine import Engine
from rove.models.load import LoadedModel
from rove.rendering.reasoning import OPENED, OPENED_REASONING
from rove.rendering.renderer import Renderer
from rove.rendering.streaming import IncrementalDetokenizer

PROMPT_END_TOKENS = 8
"""Number of tokens at the end of a prompt that are checked for an opening reasoning tag, usually followed by a line break."""


class ClientEngine(InferenceEngine, Protocol):
    """An engine with the methods that `EngineClient` needs in addition to those of `InferenceEngine`."""

    max_batch: int
    """Suggested maximum number of concurrent requests."""

    @property
    def context(self) -> int:
        """Maximum tokens of prompt and completion."""
        ...

    @property
    def adapters(self) -> list[str]:
        """Names of the loaded adapters."""
        ...

    def release(self) -> None:
        """Free the cache of ended requests."""
        ...


AnEngine = TypeVar("AnEngine", bound=ClientEngine)


class EngineClient(Generic[AnEngine]):
    """Answers model requests with an inference engine that works on tokens.

    Args:
        engine: Generates tokens.
        renderer: Renderer of the same model.
        model: Name of the weights, for the identity of runs.

    Example:
        client = EngineClient.from_model(rove.load_model("models/tiny"))
        response = await client.respond(Request([UserMessage("Hello")]))
    """

    forces_tool_calls = True
    """Whether the client honors `Request.tool_choice`."""

    def __init__(self, engine: AnEngine, renderer: Renderer, model: str = ""):
        self.identity = {"model": model, **renderer.settings.identity} if model else {}
        self.engine = engine
        self.renderer = renderer
        self.max_concurrent = engine.max_batch

    @classmethod
    def from_model(
        cls, loaded: LoadedModel, max_batch: int = 256, in_flight_updates: bool = False
    ) -> EngineClient[Engine]:
        """Return a client with an embedded engine for a loaded model; `in_flight_updates`: see `Engine`."""
        renderer = loaded.renderer
        engine = Engine(
            loaded.model, sorted(renderer.stop_ids), max_batch, renderer=renderer, in_flight_updates=in_flight_updates
        )
        return EngineClient(engine, renderer, loaded.name)

    async def respond(self, request: Request) -> Response:
        """Sample a response.

        The tokens of `request.previous` are extended, not tokenized again, unless the earlier messages have changed. A
        `request.model` that names a loaded adapter selects it; any other name means the base model. Tool calls are
        parsed from the completion. `request.tool_choice` constrains the completion to calls of the chosen tools; if the length
        limit cuts the last call, the complete calls are kept. `request.on_text` receives the text as it is sampled, except for
        a suffix that may still become a stop string or a tool call.

        Raises:
            ConfigError: The model cannot call tools, or a sampling parameter is not supported.
            OverlongPromptError: The prompt leaves no room in the context.
            ModelError: See `Engine.generate`.
        """
        text, previous = request.text, request.previous
        if text is None:
            prompt_ids = self.renderer.prompt_ids(
                request.messages,
                previous,
                request.tools,
                self.engine.context,
                request.add_generation_prompt,
                request.chat_template_kwargs,
            )
        else:
            prompt_ids = self.renderer.text_ids(text, previous, self.engine.context)
        detokenizer = IncrementalDetokenizer.of(self.renderer, request, [] if text is None else prompt_ids)
        adapter = request.model if request.model in self.engine.adapters else None
        sampling = self._sampling(request)
        generation = await self.engine.generate(prompt_ids, sampling, request.seed, detokenizer, adapter)
        message = self._message(request, prompt_ids, generation)
        opened = OPENED.search(self.renderer.decode(prompt_ids[-PROMPT_END_TOKENS:])) if text is None else None
        # A constrained answer, such as one of two words, need not close the reasoning that its prompt opened.
        if opened and ("</think>" in text_of(message) or grammar_of(sampling) is None):
            message[OPENED_REASONING] = opened[0]
        # A completion that the length limit cut is not reported as a tool call: its last call may be missing.
        is_tool_call = generation.finish_reason == "stop" and bool(message.get("tool_calls"))
        return Response.of(message, prompt_ids, generation, "tool_calls" if is_tool_call else None)

    def _sampling(self, request: Request) -> SamplingParams:
        """Return the request's sampling parameters, constrained to a tool call if the request requires one."""
        sampling, tool_format = request.sampling_params, self.renderer.tool_format
        if request.tool_choice is None or tool_format is None:
            return sampling
        # llguidance compiles one grammar per completion; two of them cannot be combined.
        for name in ("response_format", "structured_outputs"):
            if getattr(sampling, name) is not None:
                raise ConfigError(f"tool_choice forces a tool call, and {name} is given too; expected only one of them")
        support = self.renderer.tool_support
        grammar = tool_call_grammar(
            tool_format,
            request.tools or [],
            request.tool_choice,
            self.renderer.special_token,
            is_exact=not support.keeps_text,
            has_ids=support.writes_ids,
            has_space=support.writes_space,
        )
        return msgspec.structs.replace(sampling, structured_outputs={"grammar": grammar})

    def _message(self, request: Request, prompt_ids: list[int], generation: Generation) -> Message:
        """Return the completion as a message."""
        ids, stop_ids = generation.ids, request.sampling_params.stop_token_ids or ()
        # The engine cuts the text at a stop string. All other texts end where the renderer says, so that they do not depend on
        # whether there are stop strings.
        text = generation.text if isinstance(generation.stopped_by, str) else None
        if request.text is not None:
            return self.renderer.read_text(prompt_ids, ids, stop_ids) if text is None else AssistantMessage(text)
        # A required call that is complete must not be lost because the length limit cut the next one.
        is_cut = request.tool_choice is not None and generation.finish_reason == "length"
        if text is None:
            return self.renderer.read(ids, request.tools, len(prompt_ids), is_cut, stop_ids)
        text = self.renderer.without_first_space(text, ids)
        return self.renderer.message(text, request.tools, len(prompt_ids), is_cut)

    async def close(self) -> None:
        """Free cached keys and values."""
        self.engine.release()
