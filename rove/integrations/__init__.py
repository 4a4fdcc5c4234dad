"""Libraries that an integration needs."""

from __future__ import annotations

import importlib.util

from rove.core.errors import ConfigError


def require_library(module: str, extra: str, who: str) -> None:
    """See that a library is there, without importing it.

    Raises:
        ConfigError: it is not; what to install.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{who} needs '{module}': pip install 'rove[{extra}]'")
