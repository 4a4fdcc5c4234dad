"""The isolated environment of sessions: read-only files of this machine's Python, and nothing else of its disk.

The zygote enters it once (`enter_jail`). Each session is forked into its own namespaces (`namespace_flags`), gets a folder
(`mount_session`) and drops its privileges (`drop_privileges`). Features that the kernel refuses are recorded in `missing`;
the host decides whether they are required.
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
NEW_ROOT = "/tmp"
"""Folder in which the new root is built, in a separate mount namespace; it exists on every Linux system."""
FOLDER = "/session"
"""The only writable folder of a session; /tmp and /dev/shm link to it."""
GENERATED_FILES = {
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


class Jail:
    """The isolation that this machine can enforce.

    Args:
        without: Features to disable as if the kernel lacked them (for tests).
    """

    def __init__(self, paths: Iterable[str], without: Iterable[str] = ()):
        self.paths = list(paths)
        self.missing: dict[str, str] = dict.fromkeys(without, "turned off")
        self.user = (os.getuid(), os.getgid())
        self.is_root = self.user[0] == 0

    def has(self, feature: str) -> bool:
        """Return whether a feature is available."""
        return feature not in self.missing

    def enter_namespaces(self) -> None:
        """Enter a process namespace for all sessions, and without root a user namespace; call this before forking the zygote."""
        if not self.is_root:
            self._try("own user", self._enter_user)
            if not self.has("own user"):
                self.missing |= dict.fromkeys(SESSION_SPACES, "needs root or a user namespace")
        self._try("processes", lambda: kernel.unshare(kernel.NEW_PID))

    def enter_jail(self, uid: int | None) -> None:
        """Build the file system and make it the root. `uid` is a session's user id, to test whether it can be used."""
        os.umask(0o022)
        self._try("files", self._build)
        for name in ("network", "ipc", "names"):
            self._try(name, lambda flag=SESSION_SPACES[name]: in_child(lambda: kernel.unshare(flag)))
        self._try("system calls", lambda: in_child(_filter))
        if uid is not None:
            self._try("own user", lambda: in_child(lambda: os.setresuid(uid, uid, uid)))
        elif self.has("own user"):
            self._try("own count", lambda: in_child(self._enter_user))

    @property
    def namespace_flags(self) -> int:
        """Namespaces of a session as flags of clone(2)."""
        flags = 0
        for name, flag in SESSION_SPACES.items():
            if self.has(name):
                flags |= flag
        # RLIMIT_NPROC counts per user and user namespace: a nested one gives each session a separate count
        if not self.is_root and self.has("own user") and self.has("own count"):
            flags |= kernel.NEW_USER
        return flags

    def mount_session(self, limits: dict[str, Any], uid: int | None) -> None:
        """In the first process of a session: mount its size-limited folder, and a /proc with only its own processes."""
        if self.namespace_flags & kernel.NEW_USER:
            self._map_user()
        with contextlib.suppress(OSError):  # the session has joined its groups: they become the root that it sees
            kernel.unshare(kernel.NEW_CGROUP)
        if self.has("files"):
            owner, group = self.user if uid is None else (uid, uid)
            options = f"size={limits['disk_bytes']},nr_inodes={limits['files']},mode=700,uid={owner},gid={group}"
            kernel.mount("tmpfs", FOLDER, "tmpfs", kernel.NOSUID | kernel.NODEV, options)
            self._show_processes()

    def _show_processes(self) -> None:
        if not self.has("processes"):  # /proc would show the processes of the machine
            return kernel.mount("none", "/proc", "tmpfs", kernel.RDONLY)
        # The strictest that the kernel supports: without `subset=pid`, /proc shows facts about the machine.
        for options in ("hidepid=invisible,subset=pid", "hidepid=2", ""):
            with contextlib.suppress(OSError):
                return kernel.mount("proc", "/proc", "proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC, options)
        kernel.mount("none", "/proc", "tmpfs", kernel.RDONLY)

    def drop_privileges(self, uid: int | None) -> None:
        """Drop all privileges irrevocably."""
        if uid is not None:
            os.setgroups([])
            os.setresgid(uid, uid, uid)  # before the user, who may not change the group
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
        _write("/proc/self/setgroups", "deny")  # without it the kernel refuses to map a group
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")

    def _build(self) -> None:
        kernel.unshare(kernel.NEW_NS)
        kernel.mount("none", "/", "", kernel.REC | kernel.PRIVATE)
        devices = [f"/dev/{name}" for name in DEVICES]
        visible = sorted({*SYSTEM, *self.paths, *devices})  # folders come before their contents
        # Opened before the mount below hides what is in /tmp.
        sources = {path: (_open_path(path), _link_target(path)) for path in visible if os.path.lexists(path)}
        kernel.mount("room", NEW_ROOT, "tmpfs", kernel.NOSUID | kernel.NODEV, "mode=755")
        for path, (fd, link) in sources.items():
            _show(fd, path, link)
            os.close(fd)
        for name in (FOLDER, "/proc", "/etc", "/dev"):
            os.makedirs(NEW_ROOT + name, exist_ok=True)
        os.symlink(FOLDER, NEW_ROOT + "/dev/shm")
        if not os.path.lexists(NEW_ROOT + "/tmp"):  # unless a visible path is below it
            os.symlink(FOLDER, NEW_ROOT + "/tmp")
        os.symlink("/proc/self/fd", NEW_ROOT + "/dev/fd")
        for name, text in GENERATED_FILES.items():
            if not os.path.lexists(NEW_ROOT + name):
                _write(NEW_ROOT + name, text)
        kernel.mount("none", NEW_ROOT, "", kernel.REMOUNT | kernel.RDONLY | kernel.NOSUID | kernel.NODEV)
        with contextlib.suppress(OSError):  # fails in containers that mask parts of /proc
            kernel.mount("proc", NEW_ROOT + "/proc", "proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
        # Not chroot, which a process can leave. With "." twice the old root is stacked on the new one and then unmounted.
        os.chdir(NEW_ROOT)
        kernel.pivot_root(".", ".")
        kernel.detach(".")
        os.chdir("/")

    def _try(self, feature: str, action: Callable[[], object]) -> None:
        if self.has(feature):
            try:
                action()
            except OSError as error:
                self.missing[feature] = str(error)


def in_child(action: Callable[[], object]) -> None:
    """Run an action in a child process that ends afterwards."""
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
    """Mount an opened file or folder under its own path; recreate a symbolic link."""
    target, source = NEW_ROOT + path, f"/proc/self/fd/{fd}"
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
    # a user namespace may not clear restrictions that a mount already has
    kept_flags = os.statvfs(target).f_flag & (os.ST_NODEV | os.ST_NOSUID | os.ST_NOEXEC)
    if not path.startswith("/dev/"):
        kept_flags |= kernel.NODEV
    # A bind mount ignores RDONLY, so it takes a second call.
    kernel.mount("none", target, "", kernel.REMOUNT | kernel.BIND | kernel.RDONLY | kernel.NOSUID | kept_flags)


def _open_path(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)


def _link_target(path: str) -> str | None:
    return os.readlink(path) if os.path.islink(path) else None


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
