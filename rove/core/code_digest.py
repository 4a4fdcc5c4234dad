"""Content hashes of functions and classes."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType
from typing import Any

import msgspec


def digest_code(function: Callable[..., object]) -> str:
    """Return a hash of the source of a function or of a callable's class; "" if the source is not available.

    For code of a notebook or a script, it includes what this code uses from there: no module file's hash covers that.
    """
    if used := digest_main_code(function):
        return used
    targets: list[Any] = [function, type(function)]
    for target in targets:
        text = _source_text(target)
        if text:
            return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return ""


def digest_main_code(target: object) -> str:
    """Return a hash of a function or class of the module `__main__` (a notebook or a script) and of the functions, classes and
    plain values that it uses from there; "" for anything else.
    """
    texts = list(_main_code(target, set()))
    if not texts:
        return ""
    return hashlib.blake2b("\n".join(texts).encode(errors="surrogatepass"), digest_size=4).hexdigest()


def _main_code(target: Any, visited_ids: set[int]) -> Iterator[str]:
    """Yield the texts that `digest_main_code` hashes. `visited_ids` holds the ids of objects that were yielded."""
    target = _code_of(target)
    if id(target) in visited_ids or target.__module__ != "__main__":
        return
    visited_ids.add(id(target))
    if inspect.isclass(target):
        for base in target.__mro__:
            if base.__module__ == "__main__":
                for name, value in vars(base).items():
                    yield from _named_value(name, value, visited_ids)
        return
    yield _source_text(target)
    names = set(_used_names(target.__code__))
    for name in sorted(names & target.__globals__.keys()):
        yield from _named_value(name, target.__globals__[name], visited_ids)
    for name, cell in zip(target.__code__.co_freevars, target.__closure__ or (), strict=True):
        with suppress(ValueError):  # the variable has no value yet
            yield from _named_value(name, cell.cell_contents, visited_ids)


def _code_of(target: Any) -> Any:
    """Return the function that a decorated function, a method, a property or a partial calls, or an object's class."""
    if isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, property):
        target = target.fget
    target = inspect.unwrap(getattr(target, "__func__", target))
    if inspect.isfunction(target) or inspect.isclass(target):
        return target
    return type(target)  # pyright: ignore[reportUnknownVariableType]


def _named_value(name: str, value: object, visited_ids: set[int]) -> Iterator[str]:
    """Yield the texts of a variable: those of its code, or its plain value."""
    if not name.startswith("__") or name == "__init__" or name == "__call__":
        code = list(_main_code(value, visited_ids))
        if code or callable(value):
            yield from code
        else:
            with suppress(TypeError, ValueError, RecursionError):  # neither code nor a plain value
                yield f"{name} = {msgspec.json.encode(value, order='sorted').decode()}"


def _used_names(code: CodeType) -> Iterator[str]:
    """Yield the names of global variables and attributes in a function's code, including the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _used_names(constant)


def _source_text(target: object) -> str:
    """Return the source of a function or class; for interactive code, its instructions; "" for a builtin."""
    try:
        return inspect.getsource(target)  # type: ignore[arg-type]
    except (OSError, TypeError):
        code = getattr(target, "__code__", None)
        return "" if code is None else "\n".join(_instructions(code))


def _instructions(code: CodeType) -> Iterator[str]:
    constants: list[Any] = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
    texts: list[str] = []
    for constant in constants:
        if type(constant) is frozenset:  # the order of a set of texts differs between processes
            constant = sorted(map(repr, constant))  # pyright: ignore[reportUnknownArgumentType]
        texts.append(repr(constant))
    yield repr((code.co_code, code.co_names, texts))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
