"""The text of a recipe file: sections of settings with comments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import tomli_w

from rove.core.plain import JsonObject, is_list


class Section(msgspec.Struct, frozen=True):
    """A table, or a list of tables, of a recipe file; without a name, settings at its top."""

    name: str
    values: Any
    reason: str = ""
    """Why the values are as they are: a comment of the file."""


def as_toml(sections: Sequence[Section], comment: str) -> str:
    """Return a recipe as the text of a TOML file."""
    parts = ["".join(f"# {line}\n" for line in comment.splitlines())]
    for section in sections:
        reason = "".join(f"# {line}\n" for line in section.reason.splitlines())
        values = {section.name: section.values} if section.name else section.values
        text = tomli_w.dumps(values)
        if is_list(section.values) and not text.startswith("[["):  # an array after a table would be part of it
            tables: list[JsonObject] = section.values
            text = "\n".join(f"[[{section.name}]]\n{tomli_w.dumps(table)}" for table in tables)
        parts.append(reason + text)
    return "\n".join(parts)
