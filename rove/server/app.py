"""The routes, and who is let in."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rove.core.protocols import Client
from rove.server.admission import check_content_type, check_page
from rove.server.handlers import Wire, answer, json_response
from rove.server.request_queue import RequestQueue
from rove.server.tokens import count_tokens, detokenize, tokenize
from rove.server.validation import Refusal, refusal
from rove.wire import chat, completions, serving_anthropic, serving_responses, tokens
from rove.wire.common import excerpt


class Api(NamedTuple):
    """An API of answers."""

    wire: Wire
    prefix: str
    """How the ids of its answers begin."""


APIS = {
    "chat/completions": Api(chat, "chatcmpl"),
    "completions": Api(completions, "cmpl"),
    "responses": Api(serving_responses, "resp"),
    "messages": Api(serving_anthropic, "msg"),
}
"""Those of others, by their path."""
DESK = web.AppKey("desk", RequestQueue)
MAX_BODY = 16 << 20
"""Bytes of a request's body."""
MAX_QUEUED = 4096
"""Answers that may wait while the client is busy."""


def make_app(
    client: Client,
    model: str | Sequence[str],
    *,
    api_key: str | None = None,
    max_body: int = MAX_BODY,
    max_queued: int = MAX_QUEUED,
) -> web.Application:
    """An OpenAI-compatible web application over any client.

    `POST /v1/chat/completions`, `/v1/completions`, `/v1/responses` and Anthropic's `/v1/messages` and
    `/v1/messages/count_tokens`, `GET /v1/models`, `/health`, `/metrics` (Prometheus); and where the client has an engine and
    a renderer of its own `POST /tokenize`, `/detokenize` and `/generate` (token ids in, token ids out). At most
    `client.max_concurrent` answers are under way, the others wait. Whoever disconnects cancels what was asked, provided the
    application runs under `listening` or a runner with `handler_cancellation`. The client is not closed.

    Args:
        client: who answers.
        model: the name or names that requests may give; the client is told which one it was.
        api_key: what every request but `/health` must bring, see `key_of`; None or "" = nothing, and web pages of other
            origins are refused, see `rove.server.admission`.
        max_body: bytes of a request's body.
        max_queued: answers that may wait; beyond that requests are turned away with status 503.
    """
    desk = RequestQueue(client, [model] if isinstance(model, str) else model, max_queued)
    app = web.Application(middlewares=[_reception(desk, api_key or "")], client_max_size=max_body)
    app[DESK] = desk

    app.add_routes(_routes(desk))
    return app


def answering(api: Api, desk_of: Callable[[web.Request], RequestQueue]) -> Handler:
    """The handler of an API, for the desk that a request is meant for."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return await answer(request, desk_of(request), api.wire, api.prefix)

    return handler


def _routes(desk: RequestQueue) -> list[web.RouteDef]:
    async def to_tokens(request: web.Request) -> web.StreamResponse:
        return await tokenize(request, desk)

    async def to_text(request: web.Request) -> web.StreamResponse:
        return await detokenize(request, desk)

    async def count(request: web.Request) -> web.StreamResponse:
        return await count_tokens(request, desk)

    async def models(request: web.Request) -> web.StreamResponse:
        return json_response({"object": "list", "data": [model_body(desk, name) for name in desk.names]})

    async def one_model(request: web.Request) -> web.StreamResponse:
        return json_response(model_body(desk, desk.named(request.match_info["name"])))

    async def health(request: web.Request) -> web.StreamResponse:
        return json_response({"status": "ok"})

    async def metrics(request: web.Request) -> web.StreamResponse:
        return web.Response(text=desk.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    return [
        *(web.post(f"/v1/{path}", answering(api, lambda request: desk)) for path, api in APIS.items()),
        web.post("/v1/messages/count_tokens", count),
        web.get("/v1/models", models),
        web.get("/v1/models/{name:.+}", one_model),
        web.post("/tokenize", to_tokens),
        web.post("/detokenize", to_text),
        web.post("/generate", answering(Api(tokens, "gen"), lambda request: desk)),
        web.get("/health", health),
        web.get("/metrics", metrics),
    ]


def model_body(desk: RequestQueue, name: str) -> dict[str, object]:
    """A model as lists of models have it."""
    told = {"id": name, "object": "model", "created": desk.started, "owned_by": "rove"}
    context = getattr(getattr(desk.client, "engine", None), "context", None)
    return told if context is None else told | {"max_model_len": context}  # under vLLM's name


def key_of(request: web.Request) -> str:
    """The key that a request brings, as OpenAI's bearer token or in Anthropic's header; "" when there is none."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


def _reception(desk: RequestQueue, api_key: str) -> Middleware:
    """Lets requests in, turns errors into answers, and counts."""
    wanted = api_key.encode()

    def let_in(request: web.Request) -> None:
        given = key_of(request).encode(errors="surrogateescape")
        if desk.draining:
            raise Refusal(503, "the server is shutting down; ask again later, or another one")
        if not wanted:
            check_page(request)
        if wanted and request.path != "/health" and not hmac.compare_digest(given, wanted):
            raise Refusal(
                401,
                "wrong or missing API key; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                "invalid_api_key",
            )
        check_content_type(request)

    @web.middleware
    async def reception(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        route = resource.canonical if resource else "other"  # not the path: anybody can make up paths
        began, status = time.perf_counter(), 499  # as nginx says "whoever asked has gone"
        desk.metrics.open += 1
        desk.idle.clear()
        try:
            try:
                let_in(request)
                response = await handler(request)
            except web.HTTPNotFound:
                paths = ", ".join(sorted(resource.canonical for resource in request.app.router.resources()))
                response = refusal(Refusal(404, f"nothing at {excerpt(request.path)}; expected one of {paths}"), route)
            except Exception as error:
                response = refusal(error, route)
            status = response.status
            if desk.draining:
                response.force_close()
            return response
        finally:
            desk.metrics.open -= 1
            if not desk.metrics.open:
                desk.idle.set()
            desk.metrics.finished(route, status, time.perf_counter() - began)

    return reception
