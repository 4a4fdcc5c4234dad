"""A client whose answers come from a Python function: for tests, baselines, and runs without any model."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rove.core.errors import InvalidModelResponseError
from rove.core.messages import AssistantMessage, Message, Messages, UserMessage, text_of
from rove.core.protocols import Request, Response
from rove.core.records import Usage
from rove.core.state import State

Answer = str | Mapping[str, Any]
ScriptedPolicy = Callable[[Messages, State, random.Random], Answer | Awaitable[Answer]]


class ScriptedClient:
    """Answers with `player(messages, state, rng)`, which returns a text or an assistant message, and may be async.

    `rng` is seeded from `request.seed`: a player that draws only from it answers the same request with the same
    words, in every run and whatever else is going on. `state` is the running rollout, or an empty one outside of a
    rollout. A raw text comes as one message of the user's. What the player raises passes through unchanged. Usage
    counts words (what whitespace separates), not tokens.

    Args:
        player: who answers.
        name: shown where other clients show a model.
        max_concurrent: how many requests the client likes to have under way at once.
    """

    def __init__(self, player: ScriptedPolicy, name: str = "scripted", *, max_concurrent: int = 256):
        self.player = player
        self.name = name
        self.max_concurrent = max_concurrent

    @property
    def identity(self) -> dict[str, Any]:
        """What tells its answers from those of another client."""
        return {"model": f"scripted:{self.name}"}

    async def respond(self, request: Request) -> Response:
        """Ask the player.

        Raises:
            InvalidModelResponseError: the player returned neither a text nor an assistant message.
        """
        asked = request.messages if request.text is None else [UserMessage(request.text)]
        messages = [Message(message) for message in asked]  # copies: a player cannot change the past
        state = State() if request.state is None else request.state
        answer = self.player(messages, state, random.Random(request.seed))
        message = self._message(await answer if inspect.isawaitable(answer) else answer)
        usage = Usage(sum(map(_words, asked)), _words(message))
        return Response(message, usage, "tool_calls" if message.get("tool_calls") else "stop")

    async def close(self) -> None:
        """Nothing to free."""

    def _message(self, answer: Any) -> Message:
        if isinstance(answer, str):
            return AssistantMessage(answer)
        if isinstance(answer, Mapping) and answer.get("role") == "assistant":
            return Message(answer)
        raise InvalidModelResponseError(
            f"the player of '{self.name}' returned {answer!r}; expected a text or an assistant message"
        )


def _words(message: Mapping[str, Any]) -> int:
    return len(text_of(message).split())
