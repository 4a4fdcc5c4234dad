"""How v0 calls functions of users: sync or async, with those of the arguments on offer that they take."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

from rove.core.errors import InfraError, InvalidModelResponseError
from rove.utils.functions import maybe_await as awaited


async def maybe_await(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function returns, awaited if need be."""
    return await awaited(func(*args, **kwargs))


_in_sync_code: ContextVar[bool] = ContextVar("in_sync_code", default=False)


def in_sync_code() -> bool:
    """Whether the caller runs inside a synchronous function of a package, which cannot await anything."""
    return _in_sync_code.get()


async def call_user(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function of a package returns, awaited if need be; `in_sync_code` holds while a synchronous one runs."""
    token = _in_sync_code.set(True)
    try:
        made = func(*args, **kwargs)  # of a coroutine function, this runs none of its code
    finally:
        _in_sync_code.reset(token)
    return await awaited(made)


def maybe_retry(
    func: Callable[..., Any],
    max_retries: int = 0,
    initial: float = 1.0,
    max_wait: float = 60.0,
    error_types: tuple[type[Exception], ...] | None = None,
) -> Callable[..., Any]:
    """An async function that is called again where it raises one of `error_types`, or returns states with one as `error`.

    Args:
        func: the async function; returned as it is where `max_retries` is 0.
        max_retries: calls after the first one. What the last call returns or raises is the result.
        initial, max_wait: seconds before the second call, doubled each time, and the most seconds between two calls.
        error_types: default: `vf.InfraError` and `vf.InvalidModelResponseError`.
    """
    if max_retries <= 0:
        return func
    kinds = (InfraError, InvalidModelResponseError) if error_types is None else error_types

    async def called(*args: Any, **kwargs: Any) -> Any:
        for attempt in range(max_retries):
            try:
                result = await func(*args, **kwargs)
            except kinds:
                result = None
            else:
                states = result if isinstance(result, list) else [result]
                if not any(isinstance(one, Mapping) and isinstance(one.get("error"), kinds) for one in states):
                    return result
            await asyncio.sleep(min(max_wait, initial * 2**attempt * random.uniform(0.5, 1.5)))
        return await func(*args, **kwargs)

    return called


async def maybe_call_with_named_args(func: Callable[..., Any], **objects: Any) -> Any:
    """Call a function with those of `objects` that it names; with all of them where it takes **kwargs."""
    return await call_user(func, **taken(func, objects))


async def maybe_semaphore(limit: int | None = None) -> AbstractAsyncContextManager[Any]:
    """Room for so many at a time; for any number where there is no limit."""
    return asyncio.Semaphore(limit) if limit and limit > 0 else nullcontext()


def taken(func: Callable[..., Any], objects: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `objects` that a function takes by name."""
    parameters = inspect.signature(func).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(objects)
    return {name: value for name, value in objects.items() if name in parameters}
