"""Environments of other libraries, and rove's environments as an OpenEnv server."""

from __future__ import annotations

import importlib.util

from rove.core.errors import ConfigError


def require_library(module: str, extra: str, user: str) -> None:
    """Check that an optional library is installed, without importing it.

    Args:
        module: name of its module.
        extra: rove's extra that installs it.
        user: what needs it, for the error message.

    Raises:
        ConfigError: it is not installed; the message explains how to install it.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{user} needs '{module}': pip install 'rove[{extra}]'")
