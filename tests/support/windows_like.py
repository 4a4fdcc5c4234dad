"""Make this interpreter behave like one on Windows, as far as Linux can, then run `rove` with the given words.

`python windows_like.py WORDS…` removes modules, functions, signals, and files that Windows lacks. It adds rules of Windows' file
system (`REFUSALS`) and of its text files (`open_file`). It does not test drives, processes, or event loops of Windows.

A part of the names is missing for all modules. For rove's own modules, all names are missing, and the system is called "nt" and
"win32". `--train` before the words limits this to rove's modules, because PyTorch's build for Linux needs the missing names; it
also hides the C compilers.
"""

from __future__ import annotations

import asyncio
import builtins
import errno
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODULES = ("curses", "fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
OS_NAMES = """
O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_NDELAY O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_RSYNC O_SYNC
O_TMPFILE P_ALL P_PGID P_PID P_PIDFD WCONTINUED WCOREDUMP WEXITED WEXITSTATUS WIFCONTINUED WIFEXITED WIFSIGNALED
WIFSTOPPED WNOHANG WNOWAIT WSTOPPED WSTOPSIG WTERMSIG WUNTRACED chown chroot confstr confstr_names copy_file_range
ctermid environb eventfd fchdir fchmod fchown fdatasync fork forkpty fpathconf fstatvfs fwalk getegid getenvb geteuid
getgid getgrouplist getgroups getloadavg getpgid getpgrp getpriority getrandom getresgid getresuid getsid getuid
getxattr initgroups killpg lchown listxattr lockf login_tty major makedev memfd_create minor mkfifo mknod nice openpty
pathconf pathconf_names pidfd_open pipe2 posix_fadvise posix_fallocate posix_spawn posix_spawnp pread preadv pwrite
pwritev readv register_at_fork removexattr sched_getaffinity sched_getparam sched_getscheduler sched_setaffinity
sched_setscheduler sched_yield sendfile set_blocking setegid seteuid setgid setgroups setpgid setpgrp setpriority
setregid setresgid setresuid setreuid setsid setuid setxattr splice statvfs sync sysconf sysconf_names tcgetpgrp
tcsetpgrp ttyname uname wait wait3 wait4 waitid writev
"""
SIGNAL_NAMES = """
ITIMER_PROF ITIMER_REAL ITIMER_VIRTUAL SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGHUP SIGIO SIGIOT SIGKILL SIGPIPE
SIGPOLL SIGPROF SIGPWR SIGQUIT SIGRTMAX SIGRTMIN SIGSTKFLT SIGSTOP SIGSYS SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG
SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm getitimer pause
pidfd_send_signal pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait sigwaitinfo
"""
MISSING: Mapping[str, Sequence[str]] = {
    "os": OS_NAMES.split(),
    "signal": SIGNAL_NAMES.split(),
    "socket": ("AF_UNIX", "MSG_DONTWAIT", "MSG_NOSIGNAL", "SO_PEERCRED", "SO_REUSEPORT", "recv_fds", "send_fds"),
    "select": ("epoll", "poll", "PIPE_BUF", "POLLERR", "POLLHUP", "POLLIN", "POLLNVAL", "POLLOUT"),
    "asyncio": ("open_unix_connection", "start_unix_server"),
    "time": ("clock_gettime", "clock_gettime_ns", "clock_settime", "tzset"),
}
"""Module → the names that it has on Linux and lacks on Windows (Python 3.11, from the type stubs of the standard library)."""
REMOVED_OS_NAMES = """
O_DIRECTORY O_NOFOLLOW O_NONBLOCK fchmod fork forkpty getegid geteuid getgid getloadavg getpgrp getpgid getuid killpg
major minor mkfifo nice posix_spawn posix_spawnp pread register_at_fork sched_getaffinity setpgid setsid statvfs
sysconf sysconf_names wait4
"""
REMOVED: Mapping[str, Sequence[str]] = {
    "os": REMOVED_OS_NAMES.split(),
    "signal": (
        "SIGALRM",
        "SIGCHLD",
        "SIGHUP",
        "SIGKILL",
        "SIGPIPE",
        "SIGQUIT",
        "SIGSTOP",
        "SIGUSR1",
        "pthread_sigmask",
    ),
    "socket": ("recv_fds", "send_fds"),
    "select": ("poll",),
}
"""The names that are deleted, so that other packages do not have them either: all that these packages do not need here."""
FORBIDDEN_CHARACTERS = set('<>:"|?*') | {chr(code) for code in range(32)}
DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
WRITES_TEXT = re.compile(r"[wax]t?")
START = os.path.realpath(os.getcwd())


def remove_for_all() -> None:
    """Delete the functions and signals that exist on POSIX systems only, and make the import of modules fail."""
    for module in MODULES:
        sys.modules[module] = None  # pyright: ignore[reportArgumentType]
    for name, missing in REMOVED.items():
        for attribute in missing:
            if hasattr(sys.modules[name], attribute):
                delattr(sys.modules[name], attribute)
    subprocess.Popen.kill = subprocess.Popen.terminate  # as on Windows; the POSIX version needs SIGKILL


class Module(types.ModuleType):
    """A module without some of its names, and with other values for some."""

    def __init__(self, module: types.ModuleType, missing: Sequence[str], values: Mapping[str, object]):
        super().__init__(module.__name__)
        object.__setattr__(self, "_rules", (module, missing, values))

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        module, missing, values = object.__getattribute__(self, "_rules")
        if name in missing:
            raise AttributeError(f"module '{module.__name__}' has no attribute '{name}'")
        return values[name] if name in values else getattr(module, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(object.__getattribute__(self, "_rules")[0], name, value)


def remove_for_rove() -> None:
    """Make the import of a module or a name that Windows lacks fail in the modules of rove."""
    modules = {name: Module(sys.modules[name], missing, {}) for name, missing in MISSING.items()}
    modules["os"] = Module(os, MISSING["os"], {"name": "nt"})
    modules["sys"] = Module(sys, (), {"platform": "win32"})
    original_import = builtins.__import__

    def import_module(name: str, globals: Mapping[str, object] | None = None, *args: Any, **options: Any) -> Any:
        importer = str((globals or {}).get("__name__"))
        if importer.partition(".")[0] != "rove":
            return original_import(name, globals, *args, **options)
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module = original_import(name, globals, *args, **options)
        return modules.get(name.partition(".")[0], module) if name in ("os.path", *modules) else module

    builtins.__import__ = import_module


def refuse_handler(*_: object) -> None:
    """Raise what the event loops of Windows raise."""
    raise NotImplementedError


def path_of(path: object, folder: object = -1) -> str:
    """Return the path that an event names, perhaps relative to the descriptor of a folder; "" for a descriptor."""
    if not isinstance(path, str | bytes | os.PathLike):
        return ""
    if isinstance(folder, int) and folder >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
    return os.fsdecode(path)


def mapped_files() -> list[str]:
    """Return the files that this process has mapped into its memory."""
    with io.open_code("/proc/self/maps") as maps:
        return [line.split(maxsplit=5)[-1].strip() for line in maps.read().decode().splitlines()]


def is_held(path: str) -> bool:
    """Return whether this process has opened or mapped a file, or a file in a folder."""
    real = os.path.realpath(path)
    files = mapped_files()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            files.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:  # the descriptor of the listing
            continue
    return any(file == real or file.startswith(f"{real}/") for file in files)


def check_name(path: object, *_: object) -> None:
    """Refuse names that Windows refuses, or gives another meaning (`a:b` is a stream of the file `a`)."""
    if not is_below_start(path):
        return
    for part in Path(os.path.relpath(os.path.realpath(path_of(path)), START)).parts:
        has_dropped_end = part.rstrip(". ") != part
        if FORBIDDEN_CHARACTERS.intersection(part) or DEVICE.fullmatch(part) or has_dropped_end:
            raise OSError(errno.EINVAL, "no file can have this name on Windows", path_of(path))


def is_below_start(path: object) -> bool:
    """Return whether a file is in the folder in which this command was started; rules apply to these files only."""
    return bool(path_of(path)) and os.path.realpath(path_of(path)).startswith(f"{START}/")


def check_free(path: object, folder: object = -1) -> None:
    """Refuse to delete or rename a file that this process holds open or maps."""
    full_path = path_of(path, folder)
    if is_below_start(full_path) and is_held(full_path):
        raise PermissionError(errno.EACCES, "the file is open, and Windows does not delete or rename it", full_path)


def check_rename(source: object, target: object, *_: object) -> None:
    """Refuse to rename open files and folders, and to replace open files."""
    check_name(target)
    check_free(source)
    if os.path.isfile(path_of(target)):
        check_free(target)
    if os.path.isdir(path_of(target)) and is_below_start(target):
        raise PermissionError(errno.EACCES, "Windows does not replace folders", path_of(target))


def check_open(path: object, mode: object, flags: object) -> None:
    """Hide the files of /proc, check names, and refuse to truncate mapped files."""
    if path_of(path).startswith("/proc/") and path_of(path) != "/proc/self/maps":
        raise FileNotFoundError(errno.ENOENT, "there is no such file", path_of(path))
    check_name(path)
    truncates = isinstance(flags, int) and bool(flags & os.O_TRUNC)
    if truncates and is_below_start(path) and os.path.realpath(path_of(path)) in mapped_files():
        raise OSError(errno.EINVAL, "the file is mapped, and Windows does not truncate it", path_of(path))


def refuse_link(source: object, target: object, *_: object) -> None:
    """Refuse symbolic links, which need a privilege on Windows."""
    if is_below_start(target) or "rove-alone" in path_of(target):
        raise OSError(errno.EPERM, "a required privilege is not held by the client", path_of(target))


REFUSALS = {
    "open": check_open,
    "os.mkdir": check_name,
    "os.rename": check_rename,
    "os.remove": check_free,
    "os.rmdir": check_free,
    "os.symlink": refuse_link,
}
"""Event of Python's audit hooks → the rule for its arguments."""


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Apply the rules of Windows' files."""
    if event in REFUSALS:
        REFUSALS[event](*arguments)


def open_file(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    *args: Any,
    **options: Any,
) -> Any:
    """Open a text file as on Windows: in cp1252 if no encoding is given, and with "\\r\\n" at the end of written lines."""
    if "b" not in mode:
        encoding = "cp1252" if encoding in (None, "locale") else encoding
        newline = "\r\n" if newline is None and WRITES_TEXT.fullmatch(mode) else newline
    return REAL_OPEN(file, mode, buffering, encoding, errors, newline, *args, **options)


REAL_OPEN = open


def rename(source: Any, target: Any) -> None:
    """Rename a file unless the target exists, as on Windows."""
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "the file exists, and Windows does not rename to it", path_of(target))
    os.replace(source, target)


def hide_compilers() -> None:
    """Make `shutil.which` find nothing that compiles C."""
    which = shutil.which
    compilers = ("cc", "gcc", "clang")
    shutil.which = lambda name, *options, **keywords: None if name in compilers else which(name, *options, **keywords)


if __name__ == "__main__":
    # These modules adapt to the system when they are imported, as they do on Windows.
    for name in (
        "asyncio",
        "multiprocessing.util",
        "pathlib",
        "select",
        "selectors",
        "signal",
        "socket",
        "tempfile",
        "time",
    ):
        importlib.import_module(name)
    if sys.argv[1] == "--train":
        del sys.argv[1]
        hide_compilers()
    else:
        remove_for_all()
    remove_for_rove()
    asyncio.SelectorEventLoop.add_signal_handler = refuse_handler
    os.rename = rename
    builtins.open = io.open = open_file
    sys.addaudithook(refuse)
    from rove.cli.main import main

    main()
