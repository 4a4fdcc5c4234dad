"""Tokenize, detokenize and count tokens, for clients that send token ids."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from rove.core.errors import ConfigError
from rove.server.handlers import json_response, read_json
from rove.server.request_queue import RequestQueue
from rove.wire.chat import asked_messages, checked_template_kwargs
from rove.wire.serving import read_body
from rove.wire.serving_anthropic import read_request


class _Tokenize(msgspec.Struct):
    model: str = ""
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


class _Detokenize(msgspec.Struct):
    tokens: list[int]
    model: str = ""


async def tokenize(request: web.Request, queue: RequestQueue) -> web.Response:
    """Handle `{"prompt": text}` or `{"messages": […], "tools": […]}` → `{"tokens": ids, "count": number of ids}`.

    The ids of messages end where the model's response starts, unless `add_generation_prompt` is false.
    """
    body = read_body(await read_json(request), _Tokenize)
    queue.resolve_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        given = "neither" if body.prompt is None else "both"
        raise ConfigError(
            f"{given} of prompt and messages given; expected exactly one of them: a text or a list of messages"
        )
    if body.prompt is not None:
        ids = queue.renderer.text_ids(body.prompt, context=queue.context)
    else:
        ids = queue.renderer.prompt_ids(
            asked_messages(body.messages or []),
            tools=body.tools,
            context=queue.context,
            generation_prompt=body.add_generation_prompt,
            template_kwargs=checked_template_kwargs(body.chat_template_kwargs),
        )
    return json_response({"tokens": ids, "count": len(ids)})


async def count_tokens(request: web.Request, queue: RequestQueue) -> web.Response:
    """Handle `POST /v1/messages/count_tokens` of Anthropic: a Messages body without `max_tokens` → `{"input_tokens": count}`."""
    body = await read_json(request)
    parsed = read_request({"max_tokens": 1, **body} if isinstance(body, dict) else body)
    queue.resolve_model(parsed.model)
    one = parsed.questions[0].request
    ids = queue.renderer.prompt_ids(one.messages, tools=one.tools, context=queue.context)
    return json_response({"input_tokens": len(ids)})


async def detokenize(request: web.Request, queue: RequestQueue) -> web.Response:
    """Handle `{"tokens": ids}` → `{"prompt": text}`; special tokens are written out."""
    body = read_body(await read_json(request), _Detokenize)
    queue.resolve_model(body.model)
    queue.check_ids(body.tokens)
    return json_response({"prompt": queue.renderer.decode(body.tokens)})
