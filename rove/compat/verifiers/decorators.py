"""v0's decorators, and calls of user functions: these may be sync or async, and receive the arguments that they name."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

from rove.compat.verifiers import errors
from rove.core.errors import InfraError, InvalidModelResponseError
from rove.utils.functions import maybe_await as awaited


def _mark(kind: str, func: Any, **notes: Any) -> Any:
    def decorate(method: Any) -> Any:
        setattr(method, kind, True)
        for name, value in notes.items():
            setattr(method, f"{kind}_{name}", value)
        return method

    return decorate if func is None else decorate(func)


def stop(func: Any = None, priority: int = 0) -> Any:
    """Mark `(self, state) -> bool` as a stop condition; its name becomes `state["stop_condition"]`."""
    return _mark("stop", func, priority=priority)


def cleanup(func: Any = None, priority: int = 0, stage: str = "rollout") -> Any:
    """Mark `(self, state)` to run after every rollout."""
    return _mark("cleanup", func, priority=priority, stage=stage)


def teardown(func: Any = None, priority: int = 0) -> Any:
    """Mark `(self)` to run once, at the end."""
    return _mark("teardown", func, priority=priority)


def _preview_mark(kind: str, **defaults: Any) -> Callable[..., Any]:
    def decorator(func: Any = None, **notes: Any) -> Any:
        return _mark(kind, func, **{"priority": 0, **defaults, **notes})

    return decorator


setup = _preview_mark("setup")
"""This and the following decorators of the preview of 0.4 set a mark that has no effect here."""
update = _preview_mark("update", stage="rollout")
metric = _preview_mark("metric", stage="rollout")
reward = _preview_mark("reward", weight=1.0, stage="rollout")
advantage = _preview_mark("advantage", stage="group")


def discover_decorated(obj: Any, kind: str) -> list[Callable[..., Any]]:
    """Return the methods of an object with a mark, in descending order of priority, then by name."""
    marked = [method for _, method in inspect.getmembers(obj, inspect.ismethod) if hasattr(method, kind)]
    return sorted(marked, key=lambda method: (-getattr(method, f"{kind}_priority", 0), method.__name__))


async def maybe_await(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function and await the result if it is awaitable."""
    return await awaited(func(*args, **kwargs))


_in_sync_code: ContextVar[bool] = ContextVar("in_sync_code", default=False)


def in_sync_code() -> bool:
    """Return whether the caller runs inside a synchronous function of a package, which cannot await."""
    return _in_sync_code.get()


async def call_user(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of a package and await the result if it is awaitable; `in_sync_code` is true while it runs."""
    # A coroutine function runs none of its code before it is awaited, so only synchronous code sees the flag.
    token = _in_sync_code.set(True)
    try:
        result = func(*args, **kwargs)
    finally:
        _in_sync_code.reset(token)
    return await awaited(result)


def maybe_retry(
    func: Callable[..., Any],
    max_retries: int = 0,
    initial: float = 1.0,
    max_wait: float = 60.0,
    error_types: tuple[type[Exception], ...] | None = None,
) -> Callable[..., Any]:
    """Return an async function that retries if one of `error_types` is raised, or returned as the `error` of a state.

    Args:
        func: the async function; returned unchanged if `max_retries` is 0.
        initial, max_wait: seconds before the first retry, doubled for each further one, and their maximum.
        error_types: default: `vf.InfraError` and `vf.InvalidModelResponseError`.
    """
    if max_retries <= 0:
        return func
    kinds = (InfraError, InvalidModelResponseError) if error_types is None else error_types

    async def with_retries(*args: Any, **kwargs: Any) -> Any:
        for attempt in range(max_retries):
            try:
                result = await func(*args, **kwargs)
                if not _has_error_of(result, kinds):
                    return result
            except kinds:
                pass
            await asyncio.sleep(min(max_wait, initial * 2**attempt * random.uniform(0.5, 1.5)))
        return await func(*args, **kwargs)

    return with_retries


def _has_error_of(result: Any, kinds: tuple[type[Exception], ...]) -> bool:
    """Return whether a state, or one of a list of states, has an error of one of these classes."""
    for state in result if isinstance(result, list) else [result]:
        if isinstance(state, Mapping) and _is_error_of(state.get("error"), kinds):
            return True
    return False


def _is_error_of(error: Any, kinds: tuple[type[Exception], ...]) -> bool:
    """Return whether an error is of one of these classes; in an output, an error is a dict with the name of its class."""
    if not isinstance(error, Mapping):
        return isinstance(error, kinds)
    # The name may be that of any exception, such as "KeyError", or of another object of the module.
    kind = getattr(errors, str(error.get("error")), None)
    return isinstance(kind, type) and issubclass(kind, kinds)


async def maybe_call_with_named_args(func: Callable[..., Any], **objects: Any) -> Any:
    """Call a function with those of `objects` that its parameters name; with all of them if it takes **kwargs."""
    return await call_user(func, **named_args(func, objects))


async def maybe_semaphore(limit: int | None = None) -> AbstractAsyncContextManager[Any]:
    """Return a semaphore or, without a limit, a context that does nothing."""
    return asyncio.Semaphore(limit) if limit and limit > 0 else nullcontext()


def named_args(func: Callable[..., Any], objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `objects` that a function takes by name."""
    parameters = inspect.signature(func).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(objects)
    return {name: value for name, value in objects.items() if name in parameters}
