"""What can be told of a user's function, and how one is called that may be async."""

from __future__ import annotations

import functools
import inspect
from typing import Any


def unwrapped(func: Any) -> Any:
    """The function inside of functools.partial."""
    while isinstance(func, functools.partial):
        func = func.func
    return func


def function_name(func: Any) -> str:
    """The name a function goes by unless given one: its own, that of the function in a partial, or its class's."""
    inner = unwrapped(func)
    return getattr(func, "__name__", None) or getattr(inner, "__name__", None) or type(inner).__name__


def is_async(func: Any) -> bool:
    """Whether calling a function gives a coroutine, as far as can be seen without calling it."""
    inner = unwrapped(func)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004


async def maybe_await(value: Any) -> Any:
    """`value`, awaited if it is awaitable."""
    return await value if inspect.isawaitable(value) else value
