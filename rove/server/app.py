"""The routes of the server, and the middleware that authorizes requests."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rove.core.errors import RejectedError, excerpt
from rove.core.plain import JsonObject
from rove.core.protocols import REQUESTER, Client
from rove.server.admission import check_content_type, check_page
from rove.server.handlers import Wire, answer, count_tokens, detokenize, tokenize
from rove.server.request_queue import RequestQueue
from rove.server.validation import json_response, refusal
from rove.wire import chat, completions, serving_anthropic, serving_responses, tokens


class Api(NamedTuple):
    """An HTTP API for model responses."""

    wire: Wire
    prefix: str
    """Prefix of response ids."""


APIS = {
    "chat/completions": Api(chat, "chatcmpl"),
    "completions": Api(completions, "cmpl"),
    "responses": Api(serving_responses, "resp"),
    "messages": Api(serving_anthropic, "msg"),
}
"""The supported APIs of other providers, by path below /v1."""
QUEUE = web.AppKey("queue", RequestQueue)
MAX_BODY = 16 << 20
"""Maximum size of a request body in bytes."""
MAX_QUEUED = 4096
"""Maximum number of queued model requests."""


def make_app(
    client: Client,
    model: str | Sequence[str],
    *,
    api_key: str | None = None,
    max_body: int = MAX_BODY,
    max_queued: int = MAX_QUEUED,
) -> web.Application:
    """Return an OpenAI-compatible web application over any client.

    It serves `POST /v1/chat/completions`, `/v1/completions`, `/v1/responses`, Anthropic's `/v1/messages` and
    `/v1/messages/count_tokens`, `GET /v1/models`, `/health` and `/metrics` (Prometheus). A client with an engine and a renderer
    adds `POST /tokenize`, `/detokenize` and `/generate` (token ids in, token ids out). At most `client.max_concurrent` requests
    run at the same time; further requests are queued. A client that disconnects cancels its requests if the application runs
    under `listening` or a runner with `handler_cancellation`. The application does not close the client. An embedded engine
    first compiles the grammars of requests in worker processes with limits on time and memory (`Engine.check_grammars`).

    Args:
        client: Answers model requests.
        model: The model name or names that requests may use; the client receives the name in the request.
        api_key: Key that every request except `/health` must send (see `key_of`). With None or "", no key is needed, and the
            server refuses requests from web pages of other origins (see `rove.server.admission`).
        max_body: Maximum size of a request body in bytes.
        max_queued: Maximum number of queued model requests; further requests get status 503.

    Example:
        >>> app = make_app(client, "my-model")  # doctest: +SKIP
        >>> await serve(app, port=8000)  # doctest: +SKIP
    """
    queue = RequestQueue(client, [model] if isinstance(model, str) else model, max_queued)
    engine = getattr(client, "engine", None)
    if engine is not None and hasattr(engine, "check_grammars"):
        engine.check_grammars = True  # a schema of a thousand characters can take hours to compile
    app = web.Application(middlewares=[_access_middleware(queue, api_key or "")], client_max_size=max_body)
    app[QUEUE] = queue
    app.add_routes(_routes(queue))
    return app


def api_handler(api: Api, queue_of: Callable[[web.Request], RequestQueue]) -> Handler:
    """Return the handler of an API; `queue_of` finds the queue for a request."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return await answer(request, queue_of(request), api.wire, api.prefix)

    return handler


def _routes(queue: RequestQueue) -> list[web.RouteDef]:
    async def models(request: web.Request) -> web.StreamResponse:
        return json_response({"object": "list", "data": [model_body(queue, name) for name in queue.names]})

    async def one_model(request: web.Request) -> web.StreamResponse:
        return json_response(model_body(queue, queue.resolve_model(request.match_info["name"])))

    async def health(request: web.Request) -> web.StreamResponse:
        return json_response({"status": "ok"})

    async def metrics(request: web.Request) -> web.StreamResponse:
        return web.Response(text=queue.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    apis = [web.post(f"/v1/{path}", api_handler(api, lambda request: queue)) for path, api in APIS.items()]
    return [
        *apis,
        web.post("/v1/messages/count_tokens", partial(count_tokens, queue=queue)),
        web.get("/v1/models", models),
        web.get("/v1/models/{name:.+}", one_model),
        web.post("/tokenize", partial(tokenize, queue=queue)),
        web.post("/detokenize", partial(detokenize, queue=queue)),
        web.post("/generate", api_handler(Api(tokens, "gen"), lambda request: queue)),
        web.get("/health", health),
        web.get("/metrics", metrics),
    ]


def model_body(queue: RequestQueue, name: str) -> JsonObject:
    """Return a model as an entry of `/v1/models`."""
    body = {"id": name, "object": "model", "created": queue.started, "owned_by": "rove"}
    context = getattr(getattr(queue.client, "engine", None), "context", None)
    return body if context is None else body | {"max_model_len": context}  # vLLM's field name


def key_of(request: web.Request) -> str:
    """Return the API key of a request, from the bearer token or Anthropic's `x-api-key` header; "" without one."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


def _access_middleware(queue: RequestQueue, api_key: str) -> Middleware:
    """Authorize requests, turn errors into JSON responses, and count requests and errors."""
    expected = api_key.encode()

    def authorize(request: web.Request) -> None:
        request_key = key_of(request).encode(errors="surrogateescape")
        if queue.draining:
            raise RejectedError(503, "the server is shutting down; retry later or use another server")
        if not expected:
            check_page(request)
        # Compared in constant time: the time of an ordinary comparison tells how many characters are right.
        elif request.path != "/health" and not hmac.compare_digest(request_key, expected):
            raise RejectedError(
                401,
                "wrong or missing API key; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                "invalid_api_key",
            )
        check_content_type(request)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        # The pattern, not the path: clients could invent any number of paths.
        route = resource.canonical if resource else "other"
        started, status = time.perf_counter(), 499  # nginx's status for "client closed request"
        queue.metrics.open += 1
        queue.idle.clear()
        try:
            try:
                REQUESTER.set(request.remote or "")
                authorize(request)
                response = await handler(request)
            except web.HTTPNotFound:
                paths = ", ".join(sorted(served.canonical for served in request.app.router.resources()))
                message = f"no route {excerpt(request.path)}; expected one of {paths}"
                response = refusal(RejectedError(404, message), route)
            except Exception as error:
                response = refusal(error, route)
            status = response.status
            if queue.draining:
                response.force_close()
            return response
        finally:
            queue.metrics.open -= 1
            if not queue.metrics.open:
                queue.idle.set()
            queue.metrics.finished(route, status, time.perf_counter() - started)

    return middleware
