"""Environments of other libraries, and rove's environments as an OpenEnv server."""

from __future__ import annotations

import importlib.util

from rove.core.errors import ConfigError


def require_library(module: str, extra: str, user: str) -> None:
    """Check that an optional library is installed, without importing it."""
    # Some of these libraries take seconds to import, or download files; they belong into workers.
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{user} needs '{module}': pip install 'rove[{extra}]'")
