"""Record what an environment's worker does outside its own process, and redirect its requests to judges to the audit's judge."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rove.audit.replies import LOG_VARIABLE
from rove.clients.openai import OpenAIClient

EVENTS = {
    "open": "file",
    "os.remove": "file",
    "os.rename": "file",
    "os.mkdir": "file",
    "shutil.rmtree": "file",
    "subprocess.Popen": "process",
    "os.system": "process",
    "os.posix_spawn": "process",
    "socket.connect": "connection",
    "socket.bind": "connection",
}
"""Audit event of Python → description of the action. https://docs.python.org/3/library/audit_events.html"""
OWN = ("/dev/", "/proc/", "/sys/")
"""Prefixes of paths that are not files."""
ROVE = f"{Path(__file__).parents[1]}{os.sep}"
"""Prefix of the programs of rove's own processes, which rove itself ends."""


IMPORTS_VARIABLE = "ROVE_AUDIT_IMPORTS"
"""Environment variable that names a function ("module:name") to call so that the environment's imports work."""


def prepare_imports() -> None:
    """Make the same imports work as in the command that started the worker, such as `import verifiers`."""
    module, _, name = os.environ.get(IMPORTS_VARIABLE, "").partition(":")
    if module:
        getattr(importlib.import_module(module), name)()


LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", "", None)
"""Names and addresses of this machine."""


def record_contact(contacted: list[str], event: str, args: tuple[Any, ...]) -> None:
    """Record the address of a connection to another machine; for `sys.addaudithook`."""
    if event == "socket.getaddrinfo" and args[0] not in LOCAL_HOSTS:
        contacted.append(str(args[0]))
    elif event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] not in LOCAL_HOSTS:
        contacted.append(str(args[1][0]))


def install() -> None:
    """Write a line per event to the log, and redirect judges; rove calls this in the worker before it loads the environment."""
    prepare_imports()
    # Opened once: `open` in the hook would be an audit event, and call the hook again.
    log = os.open(os.environ[LOG_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    temporary = os.path.realpath(tempfile.gettempdir())

    def hook(event: str, args: tuple[Any, ...]) -> None:
        kind = EVENTS.get(event)
        if kind is not None:
            text = describe(event, args, temporary)
            if text:
                os.write(log, f"{kind}\t{text}\n".encode(errors="replace"))

    sys.addaudithook(hook)
    make = OpenAIClient.__init__

    def redirected(self: OpenAIClient, base_url: str | None = None, api_key: str | None = None, **options: Any) -> None:
        make(self, os.environ[OpenAIClient.base_url_var], os.environ[OpenAIClient.api_key_var], **options)

    OpenAIClient.__init__ = redirected  # pyright: ignore[reportAttributeAccessIssue]


def describe(event: str, args: Sequence[Any], temporary: str) -> str:
    """Describe an event; return "" if it leaves nothing behind (reading, files in temporary folders, Python's cache, pipes)."""
    if event == "open":
        path, mode, flags = args
        # `open` reports a mode, `os.open` only flags.
        mode_writes = isinstance(mode, str) and not set(mode).isdisjoint("wax+")
        flags_write = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) != 0
        is_path = isinstance(path, str | bytes | os.PathLike)  # else an open file descriptor
        if not is_path or not (mode_writes or flags_write):
            return ""
        return _file(os.fsdecode(path), temporary)
    if event == "os.mkdir" and os.path.isdir(args[0]):  # makedirs(exist_ok=True) of an existing folder
        return ""
    if EVENTS[event] == "file":
        is_path = isinstance(args[0], str | bytes | os.PathLike)
        return _file(os.fsdecode(args[0]), temporary) if is_path else ""
    if event.startswith("socket."):
        address = args[1] if len(args) > 1 else ""
        if isinstance(address, str | bytes):  # a socket in the file system
            return ""
        host, port = address[:2]
        is_judge = f"//{host}:{port}/" in os.environ.get(OpenAIClient.base_url_var, "")
        return "" if is_judge else f"{event.removeprefix('socket.')} {host}:{port}"
    command = args[1] if event == "subprocess.Popen" and len(args) > 1 else args[0]
    is_own = isinstance(command, list | tuple) and any(str(part).startswith(ROVE) for part in command)
    return "" if is_own else str(command)[:200]


def _file(path: str, temporary: str) -> str:
    real = os.path.realpath(path)
    # files next to the log are the audit's own; a mkstemp or TemporaryDirectory file has a random name in the temporary folder
    is_temporary = real.startswith(f"{temporary}{os.sep}")
    is_random = is_temporary and os.path.relpath(real, temporary).startswith("tmp")
    is_audit = False
    if log := os.environ.get(LOG_VARIABLE):
        is_audit = os.path.dirname(real) == os.path.dirname(os.path.realpath(log))
    ignored = real.startswith(OWN) or "__pycache__" in real or is_random or is_audit
    return "" if ignored else real


def events(log: Path) -> dict[str, list[str]]:
    """Return the distinct events of a log as kind → descriptions."""
    texts_by_kind: dict[str, dict[str, None]] = {}
    if log.exists():
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            kind, _, text = line.partition("\t")
            texts_by_kind.setdefault(kind, {})[text] = None
    return {kind: list(texts) for kind, texts in texts_by_kind.items()}
