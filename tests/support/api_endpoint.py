"""Real HTTP servers on loopback that speak the other APIs, and misbehave like `FaultEndpoint`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from fault_endpoint import Answer, FaultEndpoint


class ApiEndpoint(FaultEndpoint):
    """A `FaultEndpoint` under another path than chat completions, whose "ok" and "empty" are in another API's words.

    Args:
        path: under the base URL.
        words: the JSON of an answer that says a text.
        faults, options: those of `FaultEndpoint`.
    """

    def __init__(self, path: str, words: Callable[[str], dict[str, Any]], faults: Any = "ok", **options: Any):
        super().__init__(faults, **options)
        self.words = words
        self.paths: list[str] = []
        """The path of each request, in order of arrival."""
        self._server.app.router.add_post(path, self._handle)

    async def __aenter__(self) -> ApiEndpoint:
        await super().__aenter__()
        return self

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        return await super()._handle(request)

    def _named(self, name: str, body: dict[str, Any]) -> Answer:
        if name in ("ok", "empty"):
            return Answer(body=self.words(self.reply(body) if name == "ok" else ""))
        return super()._named(name, body)


def anthropic_message(text: str) -> dict[str, Any]:
    """A message of Anthropic's; 3 prompt tokens, 2 completion tokens."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": text}] if text else [],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }


def openai_response(text: str) -> dict[str, Any]:
    """A response of OpenAI's; 3 prompt tokens, 2 completion tokens."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}]
        if text
        else [],
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
    }


def text_completion(text: str) -> dict[str, Any]:
    """A completion of OpenAI's; 3 prompt tokens, 2 completion tokens."""
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "choices": [{"index": 0, "text": text, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
