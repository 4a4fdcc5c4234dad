"""Settings by dotted name, for tests that try one setting after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rove.core.config import merge, nested

TABLES = ("loss", "curriculum", "filter", "lora", "isolation", "ray")


def setting_names(config: type[msgspec.Struct]) -> Iterator[str]:
    """The names of all settings, those of tables dotted."""
    for field in msgspec.structs.fields(config):
        if field.name in TABLES:
            yield from (f"{field.name}.{one}" for one in field.default.__struct_fields__)
        else:
            yield field.name


def tables(values: dict[str, Any]) -> dict[str, Any]:
    """Settings by dotted name as nested tables."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        merge(found, nested(name, value))
    return found
