"""Names for types of plain data in files, in requests, and in users' dataset rows, and for errors of their decoders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, json.JSONDecodeError, RecursionError)
"""Exceptions that decoding untrusted JSON can raise: invalid UTF-8 and deep nesting raise other ones than the decoder's own.
Decoding TOML, and JSON in Python, also raises `ValueError` for a number of more than 4,300 digits; it is not listed here, because
`ConfigError` is a `ValueError`."""
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""Exceptions that parsing untrusted Python code can raise: a null byte and deep nesting raise other ones than `SyntaxError`."""
Row = dict[str, Any]
"""A dataset row: `prompt` or `question`, and any other columns."""
Info = dict[str, Any]
"""The `info` of a dataset row: any values that the author of the environment needs."""
MessageDict = dict[str, Any]
"""A chat message in the OpenAI wire form; `rove.Message` adds access by attribute."""
ToolDefinition = dict[str, Any]
"""A tool in the OpenAI wire form: {"type": "function", "function": {"name": …, "description": …, "parameters": …}}."""
JsonValue = Any
"""A decoded JSON value; the code that reads it checks it."""
JsonObject = dict[str, Any]
"""A decoded JSON object; the code that reads a value checks it."""
JsonMapping = Mapping[str, Any]
"""A JSON object that is only read."""
Arguments = dict[str, Any]
"""Keyword arguments of a function that a user has written, such as `load_environment` or a tool."""
Identity = dict[str, object]
"""Values that distinguish an environment, a model or a run from other ones; see `rove.core.digest.fingerprint`."""
Content = str | Sequence[Mapping[str, object] | str] | None
"""The content of a message: a text, or a list of parts."""


def is_mapping(value: object) -> TypeGuard[JsonMapping]:
    """Return whether a value is a mapping; `isinstance` alone leaves the types of its keys and values unknown."""
    return isinstance(value, Mapping)


def is_object(value: object) -> TypeGuard[JsonObject]:
    """Return whether a value is a dict; `isinstance` alone leaves the types of its keys and values unknown."""
    return isinstance(value, dict)


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a list or a tuple; `isinstance` alone leaves the type of its items unknown."""
    return isinstance(value, list | tuple)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether a value is a list; `isinstance` alone leaves the type of its items unknown."""
    return isinstance(value, list)
