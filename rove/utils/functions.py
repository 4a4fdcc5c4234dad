"""Inspect users' functions, and call functions that may be async."""

from __future__ import annotations

import functools
import inspect
from typing import Any


def unwrapped(func: Any) -> Any:
    """Return the function inside functools.partial."""
    while isinstance(func, functools.partial):
        func = func.func
    return func


def function_name(func: Any) -> str:
    """Return a function's default name: its own, that of the function in a partial, or that of its class."""
    inner = unwrapped(func)
    return getattr(func, "__name__", None) or getattr(inner, "__name__", None) or type(inner).__name__


def is_async(func: Any) -> bool:
    """Return whether a function is a coroutine function, as far as can be seen without calling it."""
    inner = unwrapped(func)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004


async def maybe_await(value: Any) -> Any:
    """Return `value`, awaited if it is awaitable."""
    return await value if inspect.isawaitable(value) else value
