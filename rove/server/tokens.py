"""Tokens in, tokens out: for those who bring or want the ids themselves."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from rove.errors import ConfigError
from rove.messages import as_messages
from rove.protocols import Request
from rove.server.answers import json_response, read_json
from rove.server.desk import Desk
from rove.wire.completions import Ids
from rove.wire.serving import Asked, Options, Question, questions_of, read_body, sampling_of


class _Tokenize(msgspec.Struct):
    model: str = ""
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class _Detokenize(msgspec.Struct):
    tokens: list[int]
    model: str = ""


class _Generate(Options):
    prompt_ids: Ids


async def tokenize(request: web.Request, desk: Desk) -> web.Response:
    """`{"prompt": text}` or `{"messages": […], "tools": […]}` → `{"tokens": ids, "count": how many}`.

    They go up to where the model speaks.
    """
    body = read_body(await read_json(request), _Tokenize)
    desk.named(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ConfigError("expected either prompt (a text) or messages")
    if body.prompt is not None:
        ids = desk.renderer.text_ids(body.prompt)
    else:
        ids = desk.renderer.prompt_ids(as_messages(body.messages or []), tools=body.tools)
    return json_response({"tokens": ids, "count": len(ids)})


async def detokenize(request: web.Request, desk: Desk) -> web.Response:
    """`{"tokens": ids}` → `{"prompt": text}`, special tokens written out."""
    body = read_body(await read_json(request), _Detokenize)
    desk.named(body.model)
    desk.check_ids(body.tokens)
    return json_response({"prompt": desk.renderer.decode(body.tokens)})


async def generate(request: web.Request, desk: Desk) -> web.Response:
    """`{"prompt_ids": ids, …}` with a completion's sampling fields → `{"choices": […]}` of what was sampled.

    Each choice has `ids`, `logprobs`, `finish_reason` and `policy_version`. There is no stream.
    """
    body = await read_json(request)
    options = read_body(body, _Generate)
    if options.stream:
        raise ConfigError("stream is true; expected false: tokens come all at once here")
    question = Question(Request([], sampling_of(body, options)), options.prompt_ids)
    asked = desk.admit(Asked(options.model, questions_of(question, options.n), options.n or 1))
    responses = await desk.ask_all(asked.questions)
    choices = [
        {
            "ids": tokens.completion_ids,
            "logprobs": tokens.logprobs,
            "finish_reason": response.finish_reason,
            "policy_version": tokens.policy_version,
        }
        for response in responses
        if (tokens := response.tokens) is not None
    ]
    return json_response({"model": asked.model, "choices": choices})
