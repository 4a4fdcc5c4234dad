"""Libraries that a test needs and this environment may not have."""

from __future__ import annotations

import importlib.util

import pytest


def needs_library(module: str, install: str) -> pytest.MarkDecorator:
    """Skips tests of an integration where its library is not installed."""
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed: pip install '{install}'")
