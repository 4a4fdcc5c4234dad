"""Nested settings as keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rove.core.config import merge, nested


def with_tables(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings: `loss__kl_penalty=1.0` becomes `{"loss": {"kl_penalty": 1.0}}`."""
    values: dict[str, Any] = {}
    for name, value in fields.items():
        merge(values, nested(name.replace("__", "."), value))
    return values
