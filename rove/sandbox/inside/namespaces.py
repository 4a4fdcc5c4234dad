"""The room that sessions live in: read-only files of this machine's Python, nothing else of its disk.

The zygote moves in once (`move_in`); every session is forked into its own namespaces (`spaces`), gets a folder
(`furnish`), and gives up its rights (`lock`). What the kernel refuses is noted, not raised: the host decides what will do.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Any

from . import kernel, seccomp

SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/localtime",
)
DEVICES = ("null", "zero", "full", "random", "urandom")
BASE = "/tmp"
"""Where the room is built, in a mount namespace of its own; there is a folder of this name on every Linux."""
FOLDER = "/session"
"""The one place where a session can write; /tmp and /dev/shm lead there."""
FILES = {
    "/etc/passwd": f"sandbox:x:65534:65534::{FOLDER}:/bin/bash\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
}
SESSION_SPACES = {
    "files": kernel.NEW_NS,
    "processes": kernel.NEW_PID,
    "network": kernel.NEW_NET,
    "ipc": kernel.NEW_IPC,
    "names": kernel.NEW_UTS,
}


class Room:
    """What this machine lets us enforce.

    Args:
        paths: further files and folders to show, read-only.
        without: features to leave off, as if the kernel did not have them (for tests).
    """

    def __init__(self, paths: Iterable[str], without: Iterable[str] = ()):
        self.paths = list(paths)
        self.missing: dict[str, str] = dict.fromkeys(without, "turned off")
        self.user = (os.getuid(), os.getgid())
        self.is_root = self.user[0] == 0

    def has(self, feature: str) -> bool:
        """Whether a feature is in force."""
        return feature not in self.missing

    def enter_namespaces(self) -> None:
        """Before the zygote is forked into them: one for all processes, and for whoever is not root one for rights."""
        if not self.is_root:
            self._attempt("own user", self._enter_user)
            if not self.has("own user"):
                self.missing |= dict.fromkeys(SESSION_SPACES, "needs root or a user namespace")
        self._attempt("processes", lambda: kernel.unshare(kernel.NEW_PID))

    def move_in(self, uid: int | None) -> None:
        """Build the room and make it the root. `uid`: of a session, to see whether it can be had."""
        os.umask(0o022)
        self._attempt("files", self._build)
        for name in ("network", "ipc", "names"):
            self._attempt(name, lambda flag=SESSION_SPACES[name]: in_child(lambda: kernel.unshare(flag)))
        self._attempt("system calls", lambda: in_child(_filter))
        if uid is not None:
            self._attempt("own user", lambda: in_child(lambda: os.setresuid(uid, uid, uid)))
        elif self.has("own user"):
            self._attempt("own count", lambda: in_child(self._enter_user))

    @property
    def spaces(self) -> int:
        """The namespaces that a session gets of its own, as flags of clone(2)."""
        flags = 0
        for name, flag in SESSION_SPACES.items():
            flags |= flag if self.has(name) else 0
        nested = not self.is_root and self.has("own user") and self.has("own count")
        # the number of processes is counted per user and user namespace
        return flags | (kernel.NEW_USER if nested else 0)

    def furnish(self, limits: dict[str, Any], uid: int | None) -> None:
        """In the first process of a session: a folder of its own, of bounded size, and a /proc that shows nothing else."""
        if self.spaces & kernel.NEW_USER:
            self._map_user()
        with contextlib.suppress(OSError):  # it has joined its groups by now: they are the root of what it sees
            kernel.unshare(kernel.NEW_CGROUP)
        if self.has("files"):
            owner = self.user if uid is None else (uid, uid)
            options = f"size={limits['disk_bytes']},nr_inodes={limits['files']},mode=700,uid={owner[0]},gid={owner[1]}"
            kernel.mount("tmpfs", FOLDER, "tmpfs", kernel.NOSUID | kernel.NODEV, options)
            self._show_processes()

    def _show_processes(self) -> None:
        if not self.has("processes"):
            return kernel.mount("none", "/proc", "tmpfs", kernel.RDONLY)
        for options in ("hidepid=invisible,subset=pid", "hidepid=2", ""):
            with contextlib.suppress(OSError):
                return kernel.mount("proc", "/proc", "proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC, options)
        kernel.mount("none", "/proc", "tmpfs", kernel.RDONLY)

    def lock(self, uid: int | None) -> None:
        """Give up every right, for good."""
        if uid is not None:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            kernel.prctl(kernel.CAP_AMBIENT, kernel.CAP_AMBIENT_CLEAR_ALL)
            os.setresuid(uid, uid, uid)
        os.umask(0o077)
        kernel.prctl(kernel.SET_DUMPABLE, 0)
        kernel.prctl(kernel.SET_NO_NEW_PRIVS, 1)
        if self.has("own user"):
            kernel.drop_capabilities()
        if self.has("system calls"):
            seccomp.install()

    def _enter_user(self) -> None:
        kernel.unshare(kernel.NEW_USER)
        self._map_user()

    def _map_user(self) -> None:
        uid, gid = self.user
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")

    def _build(self) -> None:
        kernel.unshare(kernel.NEW_NS)
        kernel.mount("none", "/", "", kernel.REC | kernel.PRIVATE)
        shown = sorted({*SYSTEM, *self.paths, *(f"/dev/{name}" for name in DEVICES)})  # folders before what is in them
        sources = {path: (_opened(path), _link(path)) for path in shown if os.path.lexists(path)}
        kernel.mount("room", BASE, "tmpfs", kernel.NOSUID | kernel.NODEV, "mode=755")
        for path, (fd, link) in sources.items():
            _show(fd, path, link)
            os.close(fd)
        for name in (FOLDER, "/proc", "/etc", "/dev"):
            os.makedirs(BASE + name, exist_ok=True)
        os.symlink(FOLDER, BASE + "/dev/shm")
        if not os.path.lexists(BASE + "/tmp"):  # some of the paths may be there
            os.symlink(FOLDER, BASE + "/tmp")
        os.symlink("/proc/self/fd", BASE + "/dev/fd")
        for name, text in FILES.items():
            if not os.path.lexists(BASE + name):
                _write(BASE + name, text)
        kernel.mount("none", BASE, "", kernel.REMOUNT | kernel.RDONLY | kernel.NOSUID | kernel.NODEV)
        with contextlib.suppress(OSError):  # refused where the container masks parts of /proc
            kernel.mount("proc", BASE + "/proc", "proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
        os.chdir(BASE)
        kernel.pivot_root(".", ".")
        kernel.detach(".")
        os.chdir("/")

    def _attempt(self, feature: str, action: Callable[[], object]) -> None:
        if self.has(feature):
            try:
                action()
            except OSError as error:
                self.missing[feature] = str(error)


def in_child(action: Callable[[], object]) -> None:
    """Try something in a process that ends right after.

    Raises:
        OSError: it failed.
    """
    pid = os.fork()
    if not pid:
        number = 255
        try:
            action()
            number = 0
        except OSError as error:
            number = error.errno or number
        finally:
            os._exit(number)
    number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if number:
        raise OSError(number, os.strerror(number))


def _filter() -> None:
    kernel.prctl(kernel.SET_NO_NEW_PRIVS, 1)
    seccomp.install()


def _show(fd: int, path: str, link: str | None) -> None:
    """Show an opened file or folder under its own path; a symbolic link as what it is."""
    target, source = BASE + path, f"/proc/self/fd/{fd}"
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if link is not None:
        os.symlink(link, target)
        return
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(source, target, "", kernel.BIND)
    # what a mount forbids already may not be allowed again in a user namespace
    kept = os.statvfs(target).f_flag & (os.ST_NODEV | os.ST_NOSUID | os.ST_NOEXEC)
    kept |= 0 if path.startswith("/dev/") else kernel.NODEV
    kernel.mount("none", target, "", kernel.REMOUNT | kernel.BIND | kernel.RDONLY | kernel.NOSUID | kept)


def _opened(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)


def _link(path: str) -> str | None:
    return os.readlink(path) if os.path.islink(path) else None


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
