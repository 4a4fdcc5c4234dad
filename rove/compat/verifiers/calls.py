"""How v0 calls functions of users: sync or async, with those of the arguments on offer that they take."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from rove.functions import maybe_await as awaited


async def maybe_await(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function returns, awaited if need be."""
    return await awaited(func(*args, **kwargs))


async def maybe_call_with_named_args(func: Callable[..., Any], **objects: Any) -> Any:
    """Call a function with those of `objects` that it names; with all of them where it takes **kwargs."""
    return await maybe_await(func, **taken(func, objects))


async def maybe_semaphore(limit: int | None = None) -> AbstractAsyncContextManager[Any]:
    """Room for so many at a time; for any number where there is no limit."""
    return asyncio.Semaphore(limit) if limit and limit > 0 else nullcontext()


def taken(func: Callable[..., Any], objects: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `objects` that a function takes by name."""
    parameters = inspect.signature(func).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(objects)
    return {name: value for name, value in objects.items() if name in parameters}
