"""Sentences about the protection that each kernel feature provides."""

from __future__ import annotations

from collections.abc import Mapping

from rove.sandbox.backend import Description

FEATURES = {
    "own user": (
        "code has no privileges and cannot gain any: separate user or user namespace; no capabilities",
        "code runs as the user who started it and can do anything to that user's files and processes that this user can do",
    ),
    "files": (
        "the file system is read-only and has the system's programs and this Python only; a session writes to a folder of"
        " its own, of disk_bytes, which ends with it",
        "code reads every file that its user may read, and writes wherever that user may: the limits"
        " disk_bytes and files are not enforced",
    ),
    "processes": (
        "a session sees its own processes only, and all of them end with it, those that left their group as well",
        "code sees the machine's processes; detached processes may outlive a session without a separate user",
    ),
    "network": ("there is no network", "code reaches the machine's network unless system calls are filtered"),
    "ipc": (
        "shared memory and queues of others cannot be reached",
        "System V and POSIX queues and segments are shared",
    ),
    "system calls": (
        "system calls that reach beyond a process (tracing, mounting, namespaces, modules, sockets, clocks, keys, uncounted"
        " memory) are refused",
        "every system call reaches the kernel: more of the kernel can be attacked, and code can obtain memory that no"
        " limit counts",
    ),
    "memory group": (
        "memory_bytes and disk_bytes bound all processes of a session together",
        "memory_bytes limits each process separately: a session may hold up to that amount in each of its processes",
    ),
    "pids group": (
        "processes are counted by a control group as well",
        "processes are limited only by the count for the session's user",
    ),
    "own count": (
        "each session's processes are counted by themselves",
        "the processes of all sessions of a backend are counted together: one session can use up the limit for all",
    ),
}
"""Name of a feature → a sentence about what it enforces, and a sentence about what is not contained without it."""

ESSENTIAL = ("own user", "files", "processes", "network", "ipc", "system calls")
"""Required features; if one is missing, a backend refuses to open sessions unless `unsafe` is set."""

LIMITING = ("memory group", "pids group")
"""Features that limit a session as a whole; if one is missing, a backend warns."""

ALWAYS = (
    "a call is stopped after its wall time, with every process of its session",
    "limits of each process: memory, CPU time, size of a file, open files, no core dumps",
    "output is clipped while it is read; what comes back is text, never an object",
    "no environment variables of the process that started it",
)


def describe(missing: Mapping[str, str]) -> Description:
    """Return a description of a machine, given its missing features and the reasons."""
    enforced: list[str] = [*ALWAYS]
    not_enforced: list[str] = []
    for name, (effect, consequence) in FEATURES.items():
        if name in missing:
            not_enforced.append(f"{name}: {consequence} ({missing[name]})")
        else:
            enforced.append(effect)
    return Description(enforced=enforced, missing=not_enforced)
