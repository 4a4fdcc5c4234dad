"""Texts and messages to token ids and back, for those who bring the ids themselves."""

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


async def tokenize(request: web.Request, desk: RequestQueue) -> web.Response:
    """`{"prompt": text}` or `{"messages": […], "tools": […]}` → `{"tokens": ids, "count": how many}`.

    They go up to where the model speaks.
    """
    body = read_body(await read_json(request), _Tokenize)
    desk.named(body.model)
    if (body.prompt is None) == (body.messages is None):
        given = "neither" if body.prompt is None else "both"
        raise ConfigError(f"{given} of prompt and messages given; expected one of them: a text, or a list of messages")
    if body.prompt is not None:
        ids = desk.renderer.text_ids(body.prompt, context=desk.context)
    else:
        ids = desk.renderer.prompt_ids(
            asked_messages(body.messages or []),
            tools=body.tools,
            context=desk.context,
            generation_prompt=body.add_generation_prompt,
            template_kwargs=checked_template_kwargs(body.chat_template_kwargs),
        )
    return json_response({"tokens": ids, "count": len(ids)})


async def count_tokens(request: web.Request, desk: RequestQueue) -> web.Response:
    """Anthropic's `POST /v1/messages/count_tokens`: a Messages body without `max_tokens` → `{"input_tokens": count}`."""
    body = await read_json(request)
    asked = read_request({"max_tokens": 1, **body} if isinstance(body, dict) else body)
    desk.named(asked.model)
    one = asked.questions[0].request
    ids = desk.renderer.prompt_ids(one.messages, tools=one.tools, context=desk.context)
    return json_response({"input_tokens": len(ids)})


async def detokenize(request: web.Request, desk: RequestQueue) -> web.Response:
    """`{"tokens": ids}` → `{"prompt": text}`, special tokens written out."""
    body = read_body(await read_json(request), _Detokenize)
    desk.named(body.model)
    desk.check_ids(body.tokens)
    return json_response({"prompt": desk.renderer.decode(body.tokens)})
