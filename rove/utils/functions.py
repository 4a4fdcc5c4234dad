"""Inspect users' functions, and call functions that may be async."""

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
_OTHERS = frozenset(
    {"returns", "return", "raises", "yields", "yield", "receives", "warns", "attributes", "example", "examples"}
    | {"note", "notes", "warning", "warnings", "see also", "references", "todo"}
)
_FIELD = re.compile(r":(param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|yields?)\b([^:]*):\s*(.*)")
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")

Described = dict[str, str]
"""Argument → its description in one line."""


def read_docstring(text: str | None) -> tuple[str, Described]:
    """Return the description before the first section, and the description of each argument.

    Text in no known style counts as description.
    """
    lines = inspect.cleandoc(text or "").splitlines()
    described: Described = {}
    first = len(lines)
    at = 0
    while at < len(lines):
        title, is_numpy = _heading(lines, at)
        field = _FIELD.match(lines[at])
        if title:
            end = next((i for i in range(at + 2, len(lines)) if _heading(lines, i)[0]), len(lines))
            body = lines[at + 2 : end] if is_numpy else _indented(lines[at + 1 :])
            if title in _ARGUMENTS:
                described |= _numpy_entries(body) if is_numpy else _google_entries(body)
            first, at = min(first, at), at + 1 + is_numpy + len(body)
        elif field:
            body = _indented(lines[at + 1 :])
            if field[1] in ("param", "parameter", "arg", "argument", "key", "keyword") and field[2].strip():
                described[field[2].split()[-1].lstrip("*")] = _joined([field[3], *body])
            first, at = min(first, at), at + 1 + len(body)
        else:
            at += 1
    return "\n".join(lines[:first]).strip(), described


def _heading(lines: Sequence[str], at: int) -> tuple[str, bool]:
    """Return the section that begins at a line, "" if none does, and whether it is underlined as in NumPy's style."""
    line = lines[at].lower()
    known = _ARGUMENTS | _OTHERS
    if line.endswith(":") and line[:-1] in known:
        return line[:-1], False
    under = lines[at + 1] if at + 1 < len(lines) else ""
    underlined = len(under) >= 3 and set(under) == {"-"}
    return (line, True) if underlined and line.strip() in known else ("", False)


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
    """Return a function's default name: its own, that of the function in a partial, or that of its class."""
    inner = unwrapped(func)
    return getattr(func, "__name__", None) or getattr(inner, "__name__", None) or type(inner).__name__


def is_async(func: object) -> bool:
    """Return whether a function is a coroutine function, as far as can be seen without calling it."""
    inner = unwrapped(func)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004


async def maybe_await(value: object) -> Any:
    """Return `value`, awaited if it is awaitable."""
    return await value if inspect.isawaitable(value) else value
