"""The Python interpreter that runs a model's code: cells in one shared namespace."""

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
from .host_calls import ANSWER, REQUEST, HostCaller


def serve(requests: int, answers: int, limit: int, max_request_bytes: int) -> None:
    """Answer calls until the supervisor is gone."""
    host = HostCaller(requests, answers, max_request_bytes)
    main = sys.modules["__main__"] = ModuleType("__main__")
    namespace = vars(main)
    namespace["__builtins__"] = builtins
    while head := read_all(requests, REQUEST.size):
        number, names_length, code_length = REQUEST.unpack(head)
        body = read_all(requests, max(names_length, 0) + code_length) or b""
        if names_length < 0:  # a late reply to an interrupted host call
            continue
        host.number = number
        namespace |= host.functions(body[:names_length].decode())
        code = body[names_length:].decode(errors="replace")
        failed, text = answer(code, f"<cell {number}>", namespace)
        if os.getpid() != host.owner:  # the code forked and returned in both processes: only the parent may answer
            os._exit(0)
        host.end()
        flush()
        encoded = text.encode(errors="replace")
        if len(encoded) > limit:
            encoded = encoded[: limit // 2] + b" ... " + encoded[-limit // 2 :]
        write_all(answers, ANSWER.pack(number, failed, len(encoded)) + encoded)


def answer(code: str, name: str, namespace: dict[str, Any]) -> tuple[bool, str]:
    """Run code; return whether it failed, and the traceback or the `repr` of the last expression."""
    try:
        statements, last_expression = compiled(code, name)
        # Tracebacks show source lines, and the code is in no file.
        source_lines = [f"{line}\n" for line in code.splitlines()]
        linecache.cache[name] = (len(code), None, source_lines, name)
        exec(statements, namespace)
        value = eval(last_expression, namespace) if last_expression else None
        return False, "" if value is None else repr(value)
    except BaseException as error:  # also SystemExit: exit() ends the cell, not the interpreter
        return True, format_error(error, name)


def compiled(code: str, name: str) -> tuple[CodeType, CodeType | None]:
    """Compile the statements, and separately the expression at their end."""
    tree = ast.parse(code, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = compile(ast.Expression(tree.body.pop().value), name, "eval")  # pyright: ignore[reportAttributeAccessIssue]
    return compile(tree, name, "exec"), last


def format_error(error: BaseException, name: str) -> str:
    """Return a traceback that starts in the model's code."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    whole = traceback.TracebackException(type(error), error, trace, limit=-20)
    whole.stack[:] = [frame for frame in whole.stack if frame.filename != host_calls.__file__]
    return "".join(whole.format()).rstrip()


def open_streams() -> None:
    """Open Python's standard streams on the current file descriptors."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - open until the process ends
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115


def flush() -> None:
    """Flush standard output and error, which the code may have replaced."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # closed or replaced by the code
            continue
