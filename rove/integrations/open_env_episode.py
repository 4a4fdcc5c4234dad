"""One episode of an environment that is played from outside: a rollout whose model is whoever is connected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rove.core.messages import AssistantMessage, text_of
from rove.core.protocols import Request, Response
from rove.core.records import RolloutRecord
from rove.envs.environment import Environment
from rove.integrations.environments.open_env_wire import RefusedError
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import plan

ACTION = {
    "type": "object",
    "title": "Turn",
    "description": "What the model says.",
    "properties": {
        "message": {"type": "string", "description": "Its text."},
        "tool_calls": {"type": "array", "items": {"type": "object"}, "description": "In OpenAI's form."},
        "metadata": {"type": "object"},
    },
    "required": ["message"],
}


class _Role:
    """A client whose answers are the actions of whoever is connected."""

    max_concurrent = 1

    def __init__(self) -> None:
        self.shown: asyncio.Queue[Request | RolloutRecord] = asyncio.Queue()
        self.said: asyncio.Queue[AssistantMessage] = asyncio.Queue()

    async def respond(self, request: Request) -> Response:
        """Show the conversation, and wait for an action."""
        self.shown.put_nowait(request)
        message = await self.said.get()
        return Response(message, finish_reason="tool_calls" if message.get("tool_calls") else "stop")

    async def close(self) -> None:
        """Nothing to free."""


class Episode:
    """One rollout, played from outside."""

    def __init__(self, env: Environment, example: Mapping[str, Any], seed: int, split: str, episode_id: str):
        self.state = {"episode_id": episode_id, "step_count": 0, "example_id": example["example_id"], "split": split}
        self.role = _Role()
        self.done = False
        self._known = 0
        self._play = asyncio.create_task(self._played(env, dict(example), seed))

    async def _played(self, env: Environment, example: dict[str, Any], seed: int) -> None:
        async for record in run_groups(env, self.role, plan([example], 1, seed), max_concurrent=1):
            self.role.shown.put_nowait(record)

    async def observe(self) -> dict[str, Any]:
        """What there is to see once the environment waits for an action, or the rollout is over."""
        shown = asyncio.create_task(self.role.shown.get())
        await asyncio.wait([shown, self._play], return_when=asyncio.FIRST_COMPLETED)
        if not shown.done() and self._play.done() and self.role.shown.empty():
            shown.cancel()
            self._play.result()
        told = await shown
        if isinstance(told, Request):
            messages = told.messages if told.text is None else [{"role": "user", "content": told.text}]
            new, self._known = messages[self._known :], len(messages) + 1
            return _observation(new, told.tools, 0.0, False)
        self.done = True
        scores, error = told.scores, told.error
        metadata: dict[str, Any] = {"stop_condition": told.stop_condition, "is_truncated": told.is_truncated}
        if scores is not None:
            metadata |= {"rewards": scores.rewards, "metrics": scores.metrics}
        if error is not None:
            metadata["error"] = {"phase": error.phase, "type": error.type, "message": error.message}
        new = [*told.prompt, *told.completion][self._known :]
        return _observation(new, None, None if scores is None else scores.reward, True, metadata)

    async def act(self, action: Mapping[str, Any]) -> dict[str, Any]:
        """Answer as the model, and see what comes of it."""
        if self.done:
            raise RefusedError("the episode is over; reset begins another one", "EXECUTION_ERROR")
        said = _message(action)
        self.state["step_count"] += 1
        self.role.said.put_nowait(said)
        return await self.observe()

    async def close(self) -> None:
        """End the rollout, wherever it is."""
        self._play.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._play


class Room:
    """How many sessions there may be at once."""

    def __init__(self, most: int):
        self.most = most
        self.taken = 0

    def take(self) -> None:
        """One more.

        Raises:
            RefusedError: there are as many already.
        """
        if self.taken >= self.most:
            raise RefusedError(f"all {self.most} sessions are taken", "CAPACITY_REACHED")
        self.taken += 1

    def leave(self) -> None:
        """One less."""
        self.taken -= 1


def _observation(
    messages: Sequence[Mapping[str, Any]],
    tools: list[dict[str, Any]] | None,
    reward: float | None,
    done: bool,
    metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    text = "\n\n".join(filter(None, (text_of(one) for one in messages if one["role"] != "assistant")))
    seen: dict[str, Any] = {"text": text, "messages": list(messages)}
    if tools is not None:
        seen["tools"] = tools
    told = {"observation": {**seen, "metadata": metadata or {}}, "reward": reward, "done": done}
    return {**told, "metadata": metadata} if metadata else told


def _message(action: Mapping[str, Any]) -> AssistantMessage:
    unknown = action.keys() - ACTION["properties"].keys()
    text, calls = action.get("message"), action.get("tool_calls")
    if unknown or not isinstance(text, str) or not isinstance(calls, (list, type(None))):
        raise RefusedError(
            f"an action is {{'message': a text, 'tool_calls': optionally a list}}, got {_short(action)}",
            "VALIDATION_ERROR",
        )
    return AssistantMessage(text, tool_calls=calls) if calls else AssistantMessage(text)


def _short(action: Mapping[str, Any]) -> str:
    """An action as an error quotes it."""
    said = json.dumps(action, ensure_ascii=False, default=str)
    return said if len(said) <= 200 else f"{said[:200]}…"
