"""Record what an environment's worker does outside its own process, and redirect its requests to judges to the audit's judge."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from rove.audit.replies import LOG_VARIABLE
from rove.clients.anthropic import AnthropicClient
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


SDK_CLIENTS = {
    "openai": (("OpenAI", "AsyncOpenAI"), "OPENAI_BASE_URL"),
    "anthropic": (("Anthropic", "AsyncAnthropic"), "ANTHROPIC_BASE_URL"),
}
"""Package of an API's provider → its client classes, and the environment variable with the judge's address."""
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
    sys.meta_path.insert(0, SdkFinder())
    for client_class in (OpenAIClient, AnthropicClient):
        _redirect_rove(client_class)


def _redirect_rove(client_class: type[OpenAIClient] | type[AnthropicClient]) -> None:
    """Let all clients of a class send their requests to the judge."""
    original = client_class.__init__

    def redirected(self: Any, base_url: str | None = None, api_key: str | None = None, **options: Any) -> None:
        original(self, os.environ[client_class.base_url_var], os.environ[client_class.api_key_var], **options)

    client_class.__init__ = redirected  # pyright: ignore[reportAttributeAccessIssue]


class SdkFinder(MetaPathFinder):
    """Redirects the clients of `SDK_CLIENTS` when their package is imported; to import it before may take seconds."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a package whose loader also redirects its clients; None for other modules."""
        spec = PathFinder.find_spec(fullname, path) if fullname in SDK_CLIENTS else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            names, variable = SDK_CLIENTS[fullname]
            for name in names:
                _redirect_sdk(getattr(module, name), variable)

        spec.loader.exec_module = exec_module
        return spec


def _redirect_sdk(client_class: Any, variable: str) -> None:
    """Let the clients of a class send requests to the judge instead of another machine, where each may cost money.

    Clients of this machine stay: an agent's client may be that of the model under test.
    """
    original = client_class.__init__

    @functools.wraps(original)
    def redirected(self: Any, *args: Any, **options: Any) -> None:
        address = options.get("base_url")
        if address is not None and urlsplit(str(address)).hostname not in LOCAL_HOSTS:
            options["base_url"] = os.environ[variable]
        original(self, *args, **options)

    client_class.__init__ = redirected


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
        if event == "os.rename" and is_path:
            return _file(os.fsdecode(args[1]), temporary) or _file(os.fsdecode(args[0]), temporary)
        return _file(os.fsdecode(args[0]), temporary) if is_path else ""
    if event.startswith("socket."):
        address = args[1] if len(args) > 1 else ""
        if isinstance(address, str | bytes):  # a socket in the file system
            return ""
        host, port = address[:2]
        is_judge = f"//{host}:{port}/" in os.environ.get(OpenAIClient.base_url_var, "")
        return "" if is_judge else f"{event.removeprefix('socket.')} {host}:{port}"
    command = args[1] if event == "subprocess.Popen" and len(args) > 1 else args[0]
    words = command if isinstance(command, list | tuple) else str(command).split()
    if words and os.path.basename(str(words[0])) == "uname":  # `platform.processor`, which the openai package calls
        return ""
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
    """Return the distinct events of a log as kind → descriptions, without temporary files that no longer exist."""
    temporary = os.path.realpath(tempfile.gettempdir())
    texts_by_kind: dict[str, dict[str, None]] = {}
    if log.exists():
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            kind, _, text = line.partition("\t")
            if kind == "file" and text.startswith(f"{temporary}{os.sep}") and not os.path.lexists(text):
                continue
            texts_by_kind.setdefault(kind, {})[text] = None
    return {kind: list(texts) for kind, texts in texts_by_kind.items()}
