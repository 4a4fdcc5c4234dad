"""An HTTP server on loopback with POST /v1/chat/completions and configurable faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass(frozen=True)
class HttpResponse:
    """An HTTP response that does not depend on the request."""

    status: int = 200
    body: str | bytes | Mapping[str, Any] = ""
    headers: Mapping[str, str] = field(default_factory=dict)


Fault = str | HttpResponse
"""The reaction to one request: an `HttpResponse`, or one of these names.

- "ok": a chat completion
- "hang": no response while the server runs
- "close": the connection is closed before the response
- "cut": the connection is closed in the middle of the response
- "garbage": status 200 with a body that is not JSON
- "empty": a completion without text
- "aborted": a completion without text that the server did not finish
- "context": status 400, because the prompt is too long
- a number such as "429": a response with this status and an error in JSON
"""

CONTEXT_ERROR = {
    "error": {
        "message": "This model's maximum context length is 8 tokens. However, your messages resulted in 9 tokens.",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    }
}


def completion(content: Any, finish_reason: str | None = "stop", **message: Any) -> dict[str, Any]:
    """Return the JSON of a chat completion with one choice, 3 prompt tokens and 2 completion tokens."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, **message},
                "finish_reason": finish_reason,
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def last_text(body: dict[str, Any]) -> str:
    """Return the text of the last message of a request."""
    return body["messages"][-1]["content"]


class FaultEndpoint:
    """A chat completions server for tests: `async with FaultEndpoint(faults) as server:` and requests to `server.base_url`.

    Args:
        faults: One fault for every request; or a list in order of arrival, followed by "ok"; or a function of the
            request's number (from 0) and its JSON body.
        reply: Returns the text of an "ok" response to a request's JSON body; by default, the last message.
        min_in_flight: Hold requests until this many are in flight, then respond to them.
    """

    def __init__(
        self,
        faults: Fault | Sequence[Fault] | Callable[[int, dict[str, Any]], Fault] = "ok",
        reply: Callable[[dict[str, Any]], str] = last_text,
        min_in_flight: int = 1,
    ):
        self.faults = faults
        self.reply = reply
        self.bodies: list[dict[str, Any]] = []
        """The JSON body of each request, in order of arrival."""
        self.headers: list[Mapping[str, str]] = []
        self.in_flight = 0
        self.peak_in_flight = 0
        self._barrier = asyncio.Barrier(min_in_flight)
        self._request_arrived = asyncio.Condition()
        self._stopped = asyncio.Event()
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._handle)
        self._server = TestServer(app)

    @property
    def base_url(self) -> str:
        return str(self._server.make_url("/v1"))

    @property
    def num_requests(self) -> int:
        """The number of requests that have arrived."""
        return len(self.bodies)

    async def wait_for_requests(self, count: int) -> None:
        """Wait until this many requests have arrived."""
        async with self._request_arrived:
            await self._request_arrived.wait_for(lambda: self.num_requests >= count)

    async def __aenter__(self) -> FaultEndpoint:
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped.set()
        await self._server.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = self.num_requests
        self.bodies.append(body)
        self.headers.append(request.headers.copy())
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        async with self._request_arrived:
            self._request_arrived.notify_all()
        try:
            async with self._barrier:
                await asyncio.sleep(0)
            return await self._respond(self._fault(number, body), request, body)
        finally:
            self.in_flight -= 1

    def _fault(self, number: int, body: dict[str, Any]) -> Fault:
        if isinstance(self.faults, (str, HttpResponse)):
            return self.faults
        if callable(self.faults):
            return self.faults(number, body)
        return self.faults[number] if number < len(self.faults) else "ok"

    async def _respond(self, fault: Fault, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if fault == "hang":
            await self._stopped.wait()
        if fault in ("hang", "close"):
            _drop(request)
            return web.Response()
        if fault == "cut":
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"choices": [')
            _drop(request)
            return response
        answer = fault if isinstance(fault, HttpResponse) else self._named_response(fault, body)
        text = answer.body if isinstance(answer.body, str | bytes) else json.dumps(answer.body)
        content = text if isinstance(text, bytes) else text.encode()
        return web.Response(status=answer.status, body=content, headers=answer.headers, content_type="application/json")

    def _named_response(self, name: str, body: dict[str, Any]) -> HttpResponse:
        if name == "ok":
            return HttpResponse(body=completion(self.reply(body)))
        if name == "garbage":
            return HttpResponse(body="<html>Bad gateway</html>")
        if name == "empty":
            return HttpResponse(body=completion(None))
        if name == "aborted":
            return HttpResponse(body=completion(None, finish_reason="abort"))
        if name == "context":
            return HttpResponse(400, CONTEXT_ERROR)
        if name.isdigit():
            return HttpResponse(int(name), {"error": {"message": f"told to answer {name}"}})
        raise ValueError(f"no fault is called {name!r}; see the docstring of Fault")


def _drop(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
