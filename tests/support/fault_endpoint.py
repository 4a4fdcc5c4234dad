"""A real HTTP server on loopback that speaks POST /v1/chat/completions and misbehaves as told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass(frozen=True)
class Answer:
    """One HTTP answer, whatever the request was."""

    status: int = 200
    body: str | bytes | Mapping[str, Any] = ""
    headers: Mapping[str, str] = field(default_factory=dict)


Fault = str | Answer
"""What happens to one request: an `Answer`, or the name of a behaviour.

"ok": a chat completion. "hang": no answer while the server lives. "close": the connection drops before the answer.
"cut": it drops in the middle of the answer. "garbage": 200 with a body that is not JSON. "empty": a completion without
text. "aborted": a completion without text that the server did not finish. "context": 400, the prompt is too long.
A number such as "429": that status, with an error in JSON.
"""

CONTEXT_ERROR = {
    "error": {
        "message": "This model's maximum context length is 8 tokens. However, your messages resulted in 9 tokens.",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    }
}


def completion(content: Any, finish_reason: str | None = "stop", **message: Any) -> dict[str, Any]:
    """The JSON of a chat completion with one answer; 3 prompt tokens, 2 completion tokens."""
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
    """What the last message of a request says."""
    return body["messages"][-1]["content"]


class FaultEndpoint:
    """`async with FaultEndpoint(faults) as server:` then talk to `server.base_url`.

    Args:
        faults: one fault for every request; or a list, taken in order of arrival, "ok" after its end; or a function of
            the request's number (from 0) and its JSON body.
        reply: the text of an "ok" answer to a request's JSON body; default: the last message, echoed.
        together: hold requests back until so many are in flight, then let that many go on.
    """

    def __init__(
        self,
        faults: Fault | Sequence[Fault] | Callable[[int, dict[str, Any]], Fault] = "ok",
        reply: Callable[[dict[str, Any]], str] = last_text,
        together: int = 1,
    ):
        self.faults = faults
        self.reply = reply
        self.bodies: list[dict[str, Any]] = []
        """The JSON body of each request, in order of arrival."""
        self.headers: list[Mapping[str, str]] = []
        self.in_flight = 0
        self.peak_in_flight = 0
        self._gate = asyncio.Barrier(together)
        self._news = asyncio.Condition()
        self._stopped = asyncio.Event()
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._handle)
        self._server = TestServer(app)

    @property
    def base_url(self) -> str:
        return str(self._server.make_url("/v1"))

    @property
    def requests(self) -> int:
        """How many requests came in."""
        return len(self.bodies)

    async def arrived(self, count: int) -> None:
        """Wait until so many requests came in."""
        async with self._news:
            await self._news.wait_for(lambda: self.requests >= count)

    async def __aenter__(self) -> FaultEndpoint:
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped.set()
        await self._server.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = self.requests
        self.bodies.append(body)
        self.headers.append(request.headers.copy())
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        async with self._news:
            self._news.notify_all()
        try:
            async with self._gate:
                await asyncio.sleep(0)
            return await self._act(self._fault(number, body), request, body)
        finally:
            self.in_flight -= 1

    def _fault(self, number: int, body: dict[str, Any]) -> Fault:
        if isinstance(self.faults, (str, Answer)):
            return self.faults
        if callable(self.faults):
            return self.faults(number, body)
        return self.faults[number] if number < len(self.faults) else "ok"

    async def _act(self, fault: Fault, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
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
        answer = fault if isinstance(fault, Answer) else self._named(fault, body)
        text = answer.body if isinstance(answer.body, str | bytes) else json.dumps(answer.body)
        content = text if isinstance(text, bytes) else text.encode()
        return web.Response(status=answer.status, body=content, headers=answer.headers, content_type="application/json")

    def _named(self, name: str, body: dict[str, Any]) -> Answer:
        if name == "ok":
            return Answer(body=completion(self.reply(body)))
        if name == "garbage":
            return Answer(body="<html>Bad gateway</html>")
        if name == "empty":
            return Answer(body=completion(None))
        if name == "aborted":
            return Answer(body=completion(None, finish_reason="abort"))
        if name == "context":
            return Answer(400, CONTEXT_ERROR)
        if name.isdigit():
            return Answer(int(name), {"error": {"message": f"told to answer {name}"}})
        raise ValueError(f"no fault is called {name!r}; see the docstring of Fault")


def _drop(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
