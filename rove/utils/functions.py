"""Inspect users' functions, and call functions that may be async; docs/decisions/tools.md explains the reader of docstrings."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

_ARGUMENTS = frozenset(
    {"args", "arguments", "params", "parameters", "keyword args", "keyword arguments", "other parameters"}
)
_OTHER_SECTIONS = frozenset(
    {"returns", "return", "raises", "yields", "yield", "receives", "warns", "attributes", "example", "examples"}
    | {"note", "notes", "warning", "warnings", "see also", "references", "todo"}
)
_ARGUMENT_FIELDS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})
_FIELD = re.compile(r":(param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|yields?)\b([^:]*):\s*(.*)")
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")

Described = dict[str, str]
"""Argument → its description in one line."""


def read_docstring(text: str | None) -> tuple[str, Described]:
    """Return the description before the first section, and the description of each argument.

    Text in an unknown style counts as part of the description.
    """
    lines = inspect.cleandoc(text or "").splitlines()
    described: Described = {}
    description_end = len(lines)
    position = 0
    while position < len(lines):
        title, is_underlined = _heading(lines, position)
        field = _FIELD.match(lines[position])
        if not title and not field:
            position += 1
            continue
        description_end = min(description_end, position)
        position += 1  # after the heading, or the first line of the field
        if title and is_underlined:  # NumPy's style: up to the next heading
            position += 1
            body = _before_heading(lines, position)
            if title in _ARGUMENTS:
                described |= _numpy_entries(body)
        elif title:  # Google's style
            body = _indented(lines[position:])
            if title in _ARGUMENTS:
                described |= _google_entries(body)
        else:  # Sphinx's style, such as ":param int count: how many"
            assert field is not None
            body = _indented(lines[position:])
            words = field[2].split()
            if field[1] in _ARGUMENT_FIELDS and words:
                described[words[-1].lstrip("*")] = _joined([field[3], *body])
        position += len(body)
    return "\n".join(lines[:description_end]).strip(), described


def _heading(lines: Sequence[str], position: int) -> tuple[str, bool]:
    """Return the name of the section that begins at a line ("" if none does), and whether it is underlined in NumPy's style."""
    line = lines[position].lower()
    titles = _ARGUMENTS | _OTHER_SECTIONS
    if line.endswith(":") and line[:-1] in titles:
        return line[:-1], False
    next_line = lines[position + 1] if position + 1 < len(lines) else ""
    if line.strip() in titles and len(next_line) >= 3 and set(next_line) == {"-"}:
        return line, True
    return "", False


def _before_heading(lines: Sequence[str], start: int) -> Sequence[str]:
    for position in range(start, len(lines)):
        title, _ = _heading(lines, position)
        if title:
            return lines[start:position]
    return lines[start:]


def _indented(lines: Iterable[str]) -> list[str]:
    return list(takewhile(lambda line: not line or line[0].isspace(), lines))


def _google_entries(body: Sequence[str]) -> Described:
    lines = inspect.cleandoc("\n".join(["", *body])).splitlines()
    described: Described = {}
    name = ""
    for line in lines:
        entry = _GOOGLE_ENTRY.match(line)
        if entry:
            name = entry[1]
            described[name] = entry[2].strip()
        elif name:
            described[name] = _joined([described[name], line])
    return described


def _numpy_entries(body: Sequence[str]) -> Described:
    described: Described = {}
    names: list[str] = []
    for line in body:
        entry = _NUMPY_ENTRY.match(line)
        if entry:
            names = [name.strip().lstrip("*") for name in entry[1].split(",")]
        for name in names:
            described[name] = "" if entry else _joined([described[name], line])
    return described


def _joined(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())


def unwrapped(func: object) -> Any:
    """Return the function inside functools.partial."""
    while isinstance(func, functools.partial):
        func = func.func
    return func


def function_name(func: object) -> str:
    """Return a function's default name: its own name, the name of the function in a partial, or the name of its class."""
    inner = unwrapped(func)
    return getattr(func, "__name__", None) or getattr(inner, "__name__", None) or type(inner).__name__


def is_async(func: object) -> bool:
    """Return whether a function is a coroutine function, as far as can be seen without calling it."""
    inner = unwrapped(func)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004


_PLAIN_TYPES = frozenset({type(None), bool, int, float, str, list, dict})


async def maybe_await(value: object) -> Any:
    """Return `value`, awaited if it is awaitable."""
    # Most functions of environments return these; `isawaitable` takes longer than calling a short function.
    if type(value) in _PLAIN_TYPES:
        return value
    return await value if inspect.isawaitable(value) else value
