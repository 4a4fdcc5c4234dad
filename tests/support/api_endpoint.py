"""HTTP servers on loopback for the other APIs, with the faults of `FaultEndpoint`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from fault_endpoint import FaultEndpoint, HttpResponse


class ApiEndpoint(FaultEndpoint):
    """A `FaultEndpoint` for another API than chat completions.

    Args:
        path: Path below the base URL.
        make_body: Returns the JSON body of a response with this text, for "ok" and "empty".
        faults, options: As in `FaultEndpoint`.
    """

    def __init__(self, path: str, make_body: Callable[[str], dict[str, Any]], faults: Any = "ok", **options: Any):
        super().__init__(faults, **options)
        self.make_body = make_body
        self.paths: list[str] = []
        """The path of each request, in order of arrival."""
        self._server.app.router.add_post(path, self._handle)

    async def __aenter__(self) -> ApiEndpoint:
        await super().__aenter__()
        return self

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        return await super()._handle(request)

    def _named_response(self, name: str, body: dict[str, Any]) -> HttpResponse:
        if name in ("ok", "empty"):
            return HttpResponse(body=self.make_body(self.reply(body) if name == "ok" else ""))
        return super()._named_response(name, body)


def anthropic_message(text: str) -> dict[str, Any]:
    """Return a message of Anthropic's API with 3 prompt tokens and 2 completion tokens."""
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
    """Return a response of OpenAI's Responses API with 3 prompt tokens and 2 completion tokens."""
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
    """Return a completion of OpenAI's API with 3 prompt tokens and 2 completion tokens."""
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "choices": [{"index": 0, "text": text, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
