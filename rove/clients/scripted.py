"""A client whose responses come from a Python function: for tests, baselines, and runs without a model."""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping

from rove.core.checks import check_values
from rove.core.code_digest import digest_main_code
from rove.core.errors import InvalidModelResponseError
from rove.core.messages import AssistantMessage, Message, UserMessage, text_of
from rove.core.plain import Identity
from rove.core.protocols import Request, Response, ScriptedPolicy
from rove.core.ranges import PositiveInt
from rove.core.records import Usage
from rove.core.state import State


class ScriptedClient:
    """A client that calls `policy(messages, state, rng)`.

    The policy returns a text or an assistant message and may be async. `rng` is seeded from `request.seed`, so that a
    policy that uses no other source of randomness gives the same response to the same request. `state` is the running
    rollout, or empty outside of a rollout. A raw text is passed as one user message. Exceptions of the policy are raised
    unchanged. Usage counts words, not tokens.

    Args:
        policy: the function.
        name: Name that is shown in place of a model's name.
        max_concurrent: maximum number of requests that run concurrently.

    Example:
        client = rove.ScriptedClient(lambda messages, state, rng: str(rng.randint(1, 9)), "random digit")
        records = env.generate_sync(client)
    """

    def __init__(self, policy: ScriptedPolicy, name: str = "scripted", *, max_concurrent: int = 256):
        self.policy = policy
        self.name = name
        self.max_concurrent = max_concurrent
        check_values(self, max_concurrent=PositiveInt)

    @property
    def identity(self) -> Identity:
        """Values that distinguish this client's responses from those of other clients."""
        code = digest_main_code(self.policy)  # policies of a file are a part of their environment's identity
        return {"model": f"scripted:{self.name}", **({"policy": code} if code else {})}

    async def respond(self, request: Request) -> Response:
        """Call the policy.

        Raises:
            InvalidModelResponseError: the policy returned neither a text nor an assistant message.
        """
        prompt = request.messages if request.text is None else [UserMessage(request.text)]
        messages = [Message(message) for message in prompt]  # copies: a policy cannot change the past
        state = State() if request.state is None else request.state
        answer = self.policy(messages, state, random.Random(request.seed))
        message = self._message(await answer if inspect.isawaitable(answer) else answer)
        usage = Usage(sum(map(_count_words, prompt)), _count_words(message))
        return Response(message, usage, "tool_calls" if message.get("tool_calls") else "stop")

    async def close(self) -> None:
        """Do nothing: the client holds no resources."""

    def _message(self, answer: object) -> Message:
        if isinstance(answer, str):
            return AssistantMessage(answer)
        if isinstance(answer, Mapping) and answer.get("role") == "assistant":
            return Message(answer)
        raise InvalidModelResponseError(
            f"the scripted policy '{self.name}' returned {answer!r}; expected a text or an assistant message"
        )


def _count_words(message: Mapping[str, object]) -> int:
    """Return the number of words of the text, and of the names and arguments of tool calls; invalid calls do not count."""
    texts = [text_of(message)]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            texts.append(f"{function.get('name')} {function.get('arguments')}")
    return sum(len(text.split()) for text in texts)
