"""The Python that a model's code runs in: one namespace, one piece of code after the other."""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import sys
import traceback
from types import CodeType, ModuleType
from typing import Any

from . import host_calls
from .frames import read_all, write_all
from .host_calls import ANSWER, REQUEST, Asking


def serve(requests: int, answers: int, limit: int, most: int) -> None:
    """Answer calls until the supervisor is gone. `limit`: most bytes of an answer; `most`: of a question to the host."""
    host = Asking(requests, answers, most)
    main = sys.modules["__main__"] = ModuleType("__main__")
    space = vars(main)
    space["__builtins__"] = builtins
    while head := read_all(requests, REQUEST.size):
        number, names, length = REQUEST.unpack(head)
        body = read_all(requests, max(names, 0) + length) or b""
        if names < 0:  # a reply that nobody waits for any more
            continue
        host.number = number
        space |= host.functions(body[:names].decode())
        failed, text = answer(body[names:].decode(errors="replace"), f"<cell {number}>", space)
        if os.getpid() != host.owner:  # code that forked and came back twice: only the first may answer
            os._exit(0)
        host.end()
        flush()
        said = text.encode(errors="replace")
        if len(said) > limit:
            said = said[: limit // 2] + b" ... " + said[-limit // 2 :]
        write_all(answers, ANSWER.pack(number, failed, len(said)) + said)


def answer(code: str, name: str, space: dict[str, Any]) -> tuple[bool, str]:
    """Run code in a namespace. Whether it went wrong, and the traceback, or the last expression's value as `repr` has it."""
    try:
        body, last = compiled(code, name)
        linecache.cache[name] = (len(code), None, [f"{line}\n" for line in code.splitlines()], name)
        exec(body, space)
        value = eval(last, space) if last else None
        return False, "" if value is None else repr(value)
    except (
        BaseException
    ) as error:  # SystemExit and KeyboardInterrupt too: a cell that calls exit() ends, its Python stays
        return True, told(error, name)


def compiled(code: str, name: str) -> tuple[CodeType, CodeType | None]:
    """The statements, and apart from them the expression that they end with."""
    tree = ast.parse(code, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = compile(ast.Expression(tree.body.pop().value), name, "eval")  # pyright: ignore[reportAttributeAccessIssue]
    return compile(tree, name, "exec"), last


def told(error: BaseException, name: str) -> str:
    """A traceback that begins in the model's own code."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    whole = traceback.TracebackException(type(error), error, trace, limit=-20)
    whole.stack[:] = [frame for frame in whole.stack if frame.filename != host_calls.__file__]
    return "".join(whole.format()).rstrip()


def open_streams() -> None:
    """Python's streams anew, over the file descriptors that are theirs now."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - they stay open as long as the process
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115


def flush() -> None:
    """Push out what was printed, whatever the code has made of its streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # closed or replaced by the code: nothing to push
            continue
