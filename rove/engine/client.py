"""The embedded engine as a client: messages or a text in, messages and their exact tokens out."""

from __future__ import annotations

from rove.engine.engine import Engine
from rove.errors import ConfigError
from rove.models.load import LoadedModel
from rove.protocols import Request, Response
from rove.records import StepTokens, Usage
from rove.renderer import Renderer


class EngineClient:
    """Answers requests with a model in this process.

    Args:
        engine: generates tokens.
        renderer: of the same model.
        model: name of the weights, for the identity of runs.
    """

    def __init__(self, engine: Engine, renderer: Renderer, model: str = ""):
        self.identity = {"model": model} if model else {}
        """What tells its answers from those of another client."""
        self.engine = engine
        self.renderer = renderer
        self.max_concurrent = engine.max_batch

    @classmethod
    def of(cls, loaded: LoadedModel, max_batch: int = 256) -> EngineClient:
        """A client around a loaded model."""
        return cls(Engine(loaded.model, sorted(loaded.renderer.stop_ids), max_batch), loaded.renderer, loaded.name)

    async def respond(self, request: Request) -> Response:
        """Sample an answer; `request.previous` is extended, never tokenised again, unless what was said was rewritten.

        Raises:
            ConfigError: there are tools, or sampling arguments that the engine does not have.
            OverlongPromptError: the prompt leaves no room in the model's context.
        """
        if request.tools:
            raise ConfigError("the embedded engine cannot call tools yet; use an OpenAI-compatible endpoint")
        previous, text = request.previous, request.text
        if text is None:
            prompt_ids = self.renderer.prompt_ids(request.messages, previous)
        else:
            prompt_ids = self.renderer.text_ids(text, previous)
        made = await self.engine.generate(prompt_ids, request.sampling, seed=request.seed)
        return Response(
            message=self.renderer.read(made.ids) if text is None else self.renderer.read_text(prompt_ids, made.ids),
            usage=Usage(len(prompt_ids), len(made.ids)),
            finish_reason=made.finish_reason,
            tokens=StepTokens(prompt_ids, made.ids, made.logprobs, made.policy_version),
        )

    async def close(self) -> None:
        """Forget cached keys and values."""
        self.engine.release()
