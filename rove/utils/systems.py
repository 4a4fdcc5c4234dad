"""What differs between operating systems: locks of files, signals, process groups, and the memory of a process.

Other modules call these functions instead of asking which system this is. Programs that run with the standard library alone
(the sandbox, workers, and the supervisor of vLLM) cannot import this module; docs/systems.md lists what they do elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None

logger = logging.getLogger(__name__)

SIGKILL = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Signal that ends a process immediately. Windows has only SIGTERM, which has the same effect there."""


def can_lock() -> bool:
    """Return whether this system locks files; log once what it means if it does not."""
    if fcntl is None:
        _log_missing_locks()
    return fcntl is not None


@lru_cache(maxsize=1)
def _log_missing_locks() -> None:
    logger.warning("this system has no file locks: do not let two processes write to the same folder")


def lock_file(file: IO[Any], *, wait: bool = True, shared: bool = False) -> None:
    """Lock an open file until it is closed or its process ends; do nothing on systems without locks.

    Args:
        wait: Wait for other processes that hold the lock.
        shared: Several processes may hold the lock at the same time.

    Raises:
        BlockingIOError: Another process holds the lock, and `wait` is False.
    """
    if fcntl is None:
        return
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)


def sync_files(*paths: Path) -> None:
    """Flush files, and the entries of folders, to disk."""
    flags = os.O_RDWR if os.name == "nt" else os.O_RDONLY  # Windows flushes only files that are open for writing
    for path in paths:
        if os.name == "nt" and path.is_dir():  # Windows cannot open folders
            continue
        handle = os.open(path, flags)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def peak_memory() -> int:
    """Return the peak memory of this process in bytes (its resident set); 0 on Windows, where it is unknown."""
    if resource is None:
        return 0
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group, if it still exists. Windows has no groups: only the first process gets it."""
    send = os.killpg if hasattr(os, "killpg") else os.kill
    with suppress(ProcessLookupError, PermissionError):
        send(group, number)


def on_signals(callback: Callable[[], object], *numbers: signal.Signals) -> None:
    """Call a function in the running event loop when this process gets one of these signals.

    Event loops on Windows have no handlers: Ctrl-C interrupts the program there.
    """
    loop = asyncio.get_running_loop()
    for number in numbers:
        with suppress(NotImplementedError):
            loop.add_signal_handler(number, callback)


def shell_command(line: str) -> list[str]:
    """Return the program and the arguments that run a line in the system's shell."""
    if os.name == "nt":
        return [os.environ.get("COMSPEC", "cmd.exe"), "/c", line]
    return ["/bin/sh", "-c", line]
