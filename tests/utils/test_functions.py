"""Names and async detection of user functions, partials and callable objects."""

from __future__ import annotations

import functools
from typing import Any

from tiers import each_row

from rove.utils.functions import function_name, is_async, maybe_await, unwrapped


def plain(a: int = 1) -> int:
    return a


async def async_function(a: int = 1) -> int:
    return a


class Caller:
    def __call__(self) -> int:
        return 1


class LateCaller:
    async def __call__(self) -> int:
        return 1


class Awaitable:
    def __await__(self) -> Any:
        return async_function().__await__()


TWICE = functools.partial(functools.partial(plain, 1))
NAMED = functools.partial(plain)
NAMED.__name__ = "own"  # pyright: ignore[reportAttributeAccessIssue]


@each_row(
    ("func", "name"),
    [(plain, "plain"), (TWICE, "plain"), (NAMED, "own"), (Caller(), "Caller"), (functools.partial(Caller()), "Caller")],
)
def test_function_names(func: Any, name: str):
    assert function_name(func) == name


@each_row(
    ("func", "expected"),
    [
        (plain, False),
        (async_function, True),
        (TWICE, False),
        (functools.partial(async_function, 1), True),
        (Caller(), False),
        (LateCaller(), True),
    ],
)
def test_async_functions_are_detected(func: Any, expected: bool):
    assert is_async(func) == expected


def test_a_partial_is_unwrapped_to_its_function():
    assert unwrapped(TWICE) is plain
    assert unwrapped(plain) is plain


async def test_only_awaitables_are_awaited():
    assert [await maybe_await(value) for value in (plain(3), async_function(4), Awaitable())] == [3, 4, 1]
