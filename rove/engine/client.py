"""The embedded engine as a client: messages or a text in, messages and their exact tokens out."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import msgspec

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, Message
from rove.core.protocols import Generation, InferenceEngine, Request, Response, SamplingParams
from rove.engine.constraints import tool_call_grammar
from rove.engine.engine import Engine
from rove.models.load import LoadedModel
from rove.rendering.renderer import IncrementalDetokenizer, Renderer


class ClientEngine(InferenceEngine, Protocol):
    """What a client needs of an engine beside."""

    max_batch: int
    """How many requests it likes to have under way."""

    @property
    def context(self) -> int:
        """Most tokens of prompt and answer together."""
        ...

    @property
    def adapters(self) -> list[str]:
        """Names of the adapters that are loaded."""
        ...

    def release(self) -> None:
        """Forget what it keeps of ended requests."""
        ...


AnEngine = TypeVar("AnEngine", bound=ClientEngine)


class EngineClient(Generic[AnEngine]):
    """Answers requests with an engine: the embedded one, or another that takes tokens.

    Args:
        engine: generates tokens.
        renderer: of the same model.
        model: name of the weights, for the identity of runs.
    """

    forces_tool_calls = True
    """Whether it honors `Request.tool_choice`."""

    def __init__(self, engine: AnEngine, renderer: Renderer, model: str = ""):
        self.identity = {"model": model} if model else {}
        """What tells its answers from those of another client."""
        self.engine = engine
        self.renderer = renderer
        self.max_concurrent = engine.max_batch

    @classmethod
    def from_model(
        cls, loaded: LoadedModel, max_batch: int = 256, in_flight_updates: bool = False
    ) -> EngineClient[Engine]:
        """A client around a loaded model; `in_flight`: see `Engine`."""
        renderer = loaded.renderer
        engine = Engine(
            loaded.model, sorted(renderer.stop_ids), max_batch, renderer=renderer, in_flight_updates=in_flight_updates
        )
        return EngineClient(engine, renderer, loaded.name)

    async def respond(self, request: Request) -> Response:
        """Sample an answer; `request.previous` is extended, never tokenised again, unless what was said was rewritten.

        Where `request.model` is the name of a loaded adapter, that answers; any other name means the model as it is.
        Tool calls are read from what the model wrote; `request.tool_choice` constrains it to calls of those tools.
        `request.on_text` is told the text as it comes, but for what may still turn out to be the beginning of a stop text or a
        tool call.

        Raises:
            ConfigError: the model cannot call tools, or sampling arguments that the engine does not have.
            OverlongPromptError: the prompt leaves no room in the model's context.
            ModelError: see `Engine.generate`.
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
        speech = IncrementalDetokenizer.of(self.renderer, request, [] if text is None else prompt_ids)
        adapter = request.model if request.model in self.engine.adapters else None
        made = await self.engine.generate(prompt_ids, self._sampling(request), request.seed, speech, adapter)
        message = self._message(request, prompt_ids, made)
        called = made.finish_reason == "stop" and bool(message.get("tool_calls"))
        return Response.of(message, prompt_ids, made, "tool_calls" if called else None)

    def _sampling(self, request: Request) -> SamplingParams:
        """The request's sampling, constrained to a tool call if the request requires one."""
        sampling, how = request.sampling_params, self.renderer.tool_format
        if request.tool_choice is None or how is None:
            return sampling
        given = [name for name in ("response_format", "structured_outputs") if getattr(sampling, name) is not None]
        if given:
            raise ConfigError(
                f"tool_choice forces a tool call, and {given[0]} is given too; expected one of them: leave the other out"
            )
        grammar = tool_call_grammar(how, request.tools or [], request.tool_choice, self.renderer.special_token)
        return msgspec.structs.replace(sampling, structured_outputs={"grammar": grammar})

    def _message(self, request: Request, prompt_ids: list[int], made: Generation) -> Message:
        """What was sampled; a stop text has cut `made.text`."""
        if request.text is not None:
            cut = made.text
            return self.renderer.read_text(prompt_ids, made.ids) if cut is None else AssistantMessage(cut)
        if made.text is None:
            return self.renderer.read(made.ids, request.tools, len(prompt_ids))
        return self.renderer.message(made.text, request.tools, len(prompt_ids))

    async def close(self) -> None:
        """Forget cached keys and values."""
        self.engine.release()
