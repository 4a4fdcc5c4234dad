"""Linux system calls that Python 3.11 does not offer. Each raises OSError with the attempted operation."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal

# Flags of clone(2) and unshare(2): a new namespace of this kind.
NEW_NS, NEW_CGROUP = 0x00020000, 0x02000000
NEW_UTS, NEW_IPC = 0x04000000, 0x08000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000

# Flags of mount(2).
RDONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8
REMOUNT, BIND, REC, PRIVATE = 32, 4096, 16384, 1 << 18
DETACH = 2

# Options of prctl(2).
SET_PDEATHSIG, SET_DUMPABLE, SET_SECCOMP, CAPBSET_DROP = 1, 4, 22, 24
SET_CHILD_SUBREAPER, SET_NO_NEW_PRIVS, CAP_AMBIENT, CAP_AMBIENT_CLEAR_ALL = 36, 38, 47, 4

# Numbers of system calls for which the C library has no function, or one that does more (clone).
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CLONE = {"x86_64": 56, "aarch64": 220}

libc = ctypes.CDLL(None, use_errno=True)
locked_libc = ctypes.PyDLL(None, use_errno=True)
"""The C library, loaded so that calls keep Python's lock."""


def _checked(result: int, operation: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{operation}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Move to new namespaces."""
    _checked(libc.unshare(flags), f"unshare({flags:#x})")


def clone(flags: int) -> int:
    """Fork into new namespaces; return 0 in the child, its process id in the parent.

    It skips the work that `os.fork` makes Python do in the child, and costs a third as much. This is safe here: the
    process has one thread, which holds Python's lock in both processes, so that the child's interpreter is an exact
    copy. The child forks with `os.fork`.
    """
    arguments = [CLONE[platform.machine()], flags | signal.SIGCHLD, 0, 0, 0, 0]
    words = [ctypes.c_long(argument) for argument in arguments]
    return _checked(locked_libc.syscall(*words), f"clone({flags:#x})")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    words = [text.encode() for text in (source, target, kind)]
    result = libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None)
    _checked(result, f"mount {kind or source} on {target}")


def detach(target: str) -> None:
    """Unmount, even if the mount is in use."""
    _checked(libc.umount2(target.encode(), DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root and mount the old root on `old`."""
    number = PIVOT_ROOT[platform.machine()]
    _checked(libc.syscall(ctypes.c_long(number), new.encode(), old.encode()), "pivot_root")


def prctl(option: int, *values: int | ctypes.c_void_p) -> None:
    """Call prctl(2); missing arguments are 0."""
    # Some options demand that unused arguments are 0, and ctypes passes a plain int with 32 bits only.
    padded = [*values, 0, 0, 0, 0][:4]
    words = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in padded]
    _checked(libc.prctl(option, *words), f"prctl({option})")


def set_oom_score(score: int) -> None:
    """Set how early the kernel ends this process and its children when memory runs out (-1000 to 1000; higher is earlier).

    With CAP_SYS_RESOURCE, this value is also the lowest that the processes can set later without this capability.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))


def drop_capabilities() -> None:
    """Drop all capabilities irrevocably, including for programs that are executed later."""
    for capability in range(64):
        try:
            prctl(CAPBSET_DROP, capability)
        except OSError:  # EINVAL: no further capability exists; EPERM: we do not have it
            break
    prctl(CAP_AMBIENT, CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3 of the structure, this process
    no_capabilities = (ctypes.c_uint32 * 6)()
    _checked(libc.capset(header, no_capabilities), "capset")
