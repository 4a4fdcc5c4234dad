"""What differs between operating systems: files and their locks, signals, process groups, memory, and virtual environments.

Other modules call these functions instead of asking which system this is. Programs that run with the standard library alone
(the sandbox, workers, and the supervisor of vLLM) cannot import this module; docs/systems.md lists what they do elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
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
REPLACE_ATTEMPTS = 20
REPLACE_WAIT_S = 0.05
"""Time between two attempts to rename a file that a reader has open."""


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


def is_locked(file: os.stat_result) -> bool:
    """Return whether a process holds a lock on a file, without locking it; False on systems without /proc/locks."""
    if not can_see_locks():
        return False
    inode = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    try:
        return any(inode in line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines())
    except OSError:
        return False


def can_see_locks() -> bool:
    """Return whether this system shows the locks of other processes."""
    return sys.platform == "linux" and Path("/proc/locks").exists()


def rename(source: Path, target: Path) -> None:
    """Rename a file or a folder; a file or an empty folder of the new name is replaced.

    Windows refuses while a process, such as a viewer or a virus scanner, has the file open, so rove tries again for a second. It
    replaces no folders, so an empty one is deleted first.
    """
    if os.name != "nt":
        os.replace(source, target)
        return
    if target.is_dir():
        target.rmdir()
    for _ in range(REPLACE_ATTEMPTS):
        with suppress(PermissionError):
            os.replace(source, target)
            return
        time.sleep(REPLACE_WAIT_S)
    os.replace(source, target)


def link_or_copy(link: Path, target: Path) -> None:
    """Make a symbolic link; without the permission to do so, which Windows does not give by default, a copy."""
    try:
        link.symlink_to(target)
    except OSError:
        if target.is_dir():
            shutil.copytree(target, link, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(target, link)


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


def physical_memory() -> int | None:
    """Return the memory of this machine in bytes; None on Windows, where it is unknown."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group, if it still exists. Windows has no groups: only the first process gets it."""
    send = os.killpg if hasattr(os, "killpg") else os.kill
    with suppress(OSError):  # for a process that has ended, Windows reports an invalid parameter
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


def venv_python(folder: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return folder / "Scripts" / "python.exe" if os.name == "nt" else folder / "bin" / "python"


def venv_packages(folder: Path) -> Path:
    """Return the folder of a virtual environment that holds the installed packages."""
    [packages] = folder.glob("Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages")
    return packages


def allowed_name(name: str) -> str:
    """Return a name for a file, with "-" for the characters that this system does not allow in it.

    Windows would refuse most of them, and write `a:b` into a hidden stream of the file `a`.
    """
    if os.name != "nt":
        return name
    return "".join("-" if character in '<>:"/\\|?*' else character for character in name)


def file_path(address: str) -> Path:
    """Return the path that is given as a path or as a `file://` address."""
    path = address.removeprefix("file://")
    has_drive = len(path) > 2 and path[0] == "/" and path[2] == ":"  # file:///C:/hub
    return Path(path[1:] if os.name == "nt" and has_drive else path)


def has_folder(name: str) -> bool:
    """Return whether a name has a separator of folders, which makes it a path: "/", and on Windows also a backslash."""
    return "/" in name or os.sep in name
