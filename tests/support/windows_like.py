"""Make this interpreter lack what Windows lacks, then run `rove` with the given words.

`python windows_like.py WORDS…` runs on Linux, so it shows only that rove does not need the missing modules and functions. It does
not test paths, locks or processes of Windows.
"""

from __future__ import annotations

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
    "getpgid",
    "getuid",
    "killpg",
    "mkfifo",
    "nice",
    "pread",
    "register_at_fork",
    "sched_getaffinity",
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
    "SIGUSR1",
    "SIGUSR2",
    "pthread_sigmask",
)
SOCKET_NAMES = ("recv_fds", "send_fds")
SELECT_NAMES = ("poll",)


def remove_posix() -> None:
    """Block the modules and delete the functions that exist on POSIX systems only."""
    for module in MODULES:
        sys.modules[module] = None  # pyright: ignore[reportArgumentType]  importing it raises ModuleNotFoundError
    for owner, names in ((os, OS_NAMES), (signal, SIGNAL_NAMES), (socket, SOCKET_NAMES), (select, SELECT_NAMES)):
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    subprocess.Popen.kill = subprocess.Popen.terminate  # as on Windows; the POSIX version needs SIGKILL


if __name__ == "__main__":
    # These modules adapt to the system when they are imported, as they do on Windows.
    for name in ("asyncio", "multiprocessing.util", "selectors", "tempfile"):
        importlib.import_module(name)
    remove_posix()
    from rove.cli.main import main

    main()
