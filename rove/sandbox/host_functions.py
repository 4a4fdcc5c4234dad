"""Questions of sandboxed code to functions of the host: texts to be judged, and what is said to them."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from rove.core.errors import InfraError, LimitReachedError
from rove.sandbox.backend import Functions
from rove.utils.functions import maybe_await

MOST_WORDS = 2000
"""Characters of an error that code is told."""


class Question(msgspec.Struct, frozen=True):
    """A call of a function, as code wrote it."""

    name: str
    id: int = 0
    """Which question it is; the reply says it again."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


async def reply_to(asked: str, functions: Functions, most: int) -> str:
    """What code is told: {"id", "value"}, or {"id", "error"} whatever is wrong with its question or the value.

    Args:
        asked: the question as JSON, or whatever code has made of it.
        functions: what may be called.
        most: bytes of the reply.

    Raises:
        InfraError, LimitReachedError: a function did.
    """
    number = 0
    try:
        question = msgspec.json.decode(asked, type=Question)
        number = question.id
        if question.name not in functions:
            raise ValueError(
                f"{question.name[:100]}() cannot be called now; known: {', '.join(functions) or 'nothing'}"
            )
        value = await maybe_await(functions[question.name](*question.args, **question.kwargs))
        reply = json.dumps({"id": number, "value": value}, ensure_ascii=False)
        if len(reply.encode(errors="replace")) > most:
            raise ValueError(f"{question.name}() returned more than {most} bytes (message_bytes)")
    except (InfraError, LimitReachedError):
        raise
    except Exception as error:
        words = str(error) or type(error).__name__
        return json.dumps({"id": number, "error": words[:MOST_WORDS]})
    return reply
