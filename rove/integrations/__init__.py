"""Environments of other libraries, and rove's environments as an OpenEnv server."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from rove.core.errors import ConfigError
from rove.core.messages import text_of
from rove.core.plain import JsonMapping, MessageDict


def require_library(module: str, extra: str, user: str) -> None:
    """Check that an optional library is installed, without importing it."""
    # Some of these libraries take seconds to import, or download files; they belong into workers.
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{user} needs '{module}': pip install 'rove[{extra}]'")


def text_messages(messages: Iterable[JsonMapping]) -> list[MessageDict]:
    """Return the roles and texts of messages, without tool calls and images."""
    return [{"role": message["role"], "content": text_of(message)} for message in messages]
