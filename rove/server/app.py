"""The routes, and who is let in."""

from __future__ import annotations

import hmac
import time
from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rove.protocols import Client
from rove.server.answers import answer, json_response
from rove.server.desk import Desk
from rove.server.refusals import Refusal, refusal
from rove.server.tokens import detokenize, tokenize
from rove.wire import chat, completions, tokens
from rove.wire.common import excerpt

DESK = web.AppKey("desk", Desk)
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

    `POST /v1/chat/completions`, `/v1/completions`, `GET /v1/models`, `/health`, `/metrics` (Prometheus); and where the
    client has an engine and a renderer of its own `POST /tokenize`, `/detokenize` and `/generate` (token ids in, token
    ids out). At most `client.max_concurrent` answers are under way, the others wait. Whoever disconnects cancels what
    was asked, provided the application runs under `listening` or a runner with `handler_cancellation`. The client is
    not closed.

    Args:
        client: who answers.
        model: the name or names that requests may give; the client is told which one it was.
        api_key: what every request but `/health` must bring as bearer token; None or "" = nothing.
        max_body: bytes of a request's body.
        max_queued: answers that may wait; beyond that requests are turned away with status 503.
    """
    desk = Desk(client, [model] if isinstance(model, str) else model, max_queued)
    app = web.Application(middlewares=[_reception(desk, api_key or "")], client_max_size=max_body)
    app[DESK] = desk

    app.add_routes(_routes(desk))
    return app


def _routes(desk: Desk) -> list[web.RouteDef]:
    async def chat_completions(request: web.Request) -> web.StreamResponse:
        return await answer(request, desk, chat, "chatcmpl")

    async def text_completions(request: web.Request) -> web.StreamResponse:
        return await answer(request, desk, completions, "cmpl")

    async def to_tokens(request: web.Request) -> web.StreamResponse:
        return await tokenize(request, desk)

    async def to_text(request: web.Request) -> web.StreamResponse:
        return await detokenize(request, desk)

    async def continued(request: web.Request) -> web.StreamResponse:
        return await answer(request, desk, tokens, "gen")

    async def models(request: web.Request) -> web.StreamResponse:
        return json_response({"object": "list", "data": [_model(desk, name) for name in desk.names]})

    async def one_model(request: web.Request) -> web.StreamResponse:
        return json_response(_model(desk, desk.named(request.match_info["name"])))

    async def health(request: web.Request) -> web.StreamResponse:
        return json_response({"status": "ok"})

    async def metrics(request: web.Request) -> web.StreamResponse:
        return web.Response(text=desk.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    return [
        web.post("/v1/chat/completions", chat_completions),
        web.post("/v1/completions", text_completions),
        web.get("/v1/models", models),
        web.get("/v1/models/{name:.+}", one_model),
        web.post("/tokenize", to_tokens),
        web.post("/detokenize", to_text),
        web.post("/generate", continued),
        web.get("/health", health),
        web.get("/metrics", metrics),
    ]


def _model(desk: Desk, name: str) -> dict[str, object]:
    told = {"id": name, "object": "model", "created": desk.started, "owned_by": "rove"}
    context = getattr(getattr(desk.client, "engine", None), "context", None)
    return told if context is None else told | {"max_model_len": context}  # under vLLM's name


def _reception(desk: Desk, api_key: str) -> Middleware:
    """Lets requests in, turns errors into answers, and counts."""
    wanted = api_key.encode()

    def let_in(request: web.Request) -> None:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        given = key.strip().encode(errors="surrogateescape") if scheme.lower() == "bearer" else b""
        if desk.draining:
            raise Refusal(503, "the server is shutting down; ask again later, or another one")
        if wanted and request.path != "/health" and not hmac.compare_digest(given, wanted):
            raise Refusal(401, "wrong or missing API key; send it as 'Authorization: Bearer KEY'", "invalid_api_key")

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
                response = refusal(Refusal(404, f"nothing at {excerpt(request.path)}; expected one of {paths}"))
            except Exception as error:
                response = refusal(error)
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
