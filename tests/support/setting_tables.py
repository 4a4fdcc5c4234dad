"""Settings by dotted name, for tests that change one setting at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rove.core.config import merge, nested

TABLES = ("loss", "curriculum", "filter", "lora", "isolation", "ray")


def setting_names(config: type[msgspec.Struct]) -> Iterator[str]:
    """Yield the names of all settings; names of nested settings are dotted."""
    for field in msgspec.structs.fields(config):
        if field.name in TABLES:
            yield from (f"{field.name}.{name}" for name in field.default.__struct_fields__)
        else:
            yield field.name


def nested_tables(values: dict[str, Any]) -> dict[str, Any]:
    """Return settings with dotted names as nested tables."""
    merged: dict[str, Any] = {}
    for name, value in values.items():
        merge(merged, nested(name, value))
    return merged
