"""Make this interpreter lack what Windows lacks, then run `rove` with the given words.

`python windows_like.py WORDS…` runs on Linux, so it shows only that rove does not need the missing modules, functions and files.
It does not test paths, locks or processes of Windows.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import select
import signal
import socket
import subprocess
import sys

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
OS_NAMES = (
    "O_DIRECTORY",
    "O_NOFOLLOW",
    "O_NONBLOCK",
    "fchmod",
    "fork",
    "forkpty",
    "getegid",
    "geteuid",
    "getgid",
    "getloadavg",
    "getpgrp",
    "getpgid",
    "getuid",
    "killpg",
    "mkfifo",
    "nice",
    "posix_spawn",
    "posix_spawnp",
    "pread",
    "register_at_fork",
    "sched_getaffinity",
    "setpgid",
    "setsid",
    "statvfs",
    "sysconf",
    "wait4",
)
SIGNAL_NAMES = (
    "SIGALRM",
    "SIGCHLD",
    "SIGHUP",
    "SIGKILL",
    "SIGPIPE",
    "SIGQUIT",
    "SIGSTOP",
    "SIGCONT",
    "SIGUSR1",
    "SIGUSR2",
    "pthread_sigmask",
)
SOCKET_NAMES = ("recv_fds", "send_fds")
SELECT_NAMES = ("poll",)


def block_modules() -> None:
    """Make the import of a module raise ModuleNotFoundError, as it does where the module does not exist."""
    for module in MODULES:
        sys.modules[module] = None  # pyright: ignore[reportArgumentType]


def remove_posix() -> None:
    """Delete the functions and signals that exist on POSIX systems only."""
    for owner, names in ((os, OS_NAMES), (signal, SIGNAL_NAMES), (socket, SOCKET_NAMES), (select, SELECT_NAMES)):
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    subprocess.Popen.kill = subprocess.Popen.terminate  # as on Windows; the POSIX version needs SIGKILL
    asyncio.SelectorEventLoop.add_signal_handler = refuse_handler
    sys.addaudithook(refuse_proc)


def refuse_handler(*_: object) -> None:
    """Raise what the event loops of Windows raise."""
    raise NotImplementedError


def refuse_proc(event: str, arguments: tuple[object, ...]) -> None:
    """Hide the files of /proc."""
    if event == "open" and str(arguments[0]).startswith("/proc/"):
        raise FileNotFoundError(arguments[0])


if __name__ == "__main__":
    # These modules adapt to the system when they are imported, as they do on Windows.
    for name in ("asyncio", "multiprocessing.util", "selectors", "tempfile"):
        importlib.import_module(name)
    block_modules()
    remove_posix()
    from rove.cli.main import main

    main()
