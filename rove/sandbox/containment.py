"""Sentences about what is not contained without a kernel feature."""

from __future__ import annotations

from collections.abc import Mapping

from rove.sandbox.backend import Description

FEATURES = {
    "own user": (
        "code runs as the user who started it and can do anything to that user's files and processes that this user can do"
    ),
    "files": (
        "code reads every file that its user may read, and writes wherever that user may: the limits"
        " disk_bytes and files are not enforced"
    ),
    "processes": (
        "code sees the machine's processes; detached processes may outlive a session without a separate user"
    ),
    "network": "code reaches the machine's network unless system calls are filtered",
    "ipc": "System V and POSIX queues and segments are shared",
    "system calls": (
        "every system call reaches the kernel: more of the kernel can be attacked, and code can obtain memory that no"
        " limit counts"
    ),
    "memory group": (
        "memory_bytes limits each process separately: a session may hold up to that amount in each of its processes"
    ),
    "pids group": "processes are limited only by the count for the session's user",
    "own count": (
        "the processes of all sessions of a backend are counted together: one session can use up the limit for all"
    ),
}
"""Name of a feature → a sentence about what is not contained without it."""

ESSENTIAL = ("own user", "files", "processes", "network", "ipc", "system calls")
"""Required features; if one is missing, a backend refuses to open sessions unless `unsafe` is set."""

LIMITING = ("memory group", "pids group")
"""Features that limit a session as a whole; if one is missing, a backend warns."""


def describe(missing: Mapping[str, str]) -> Description:
    """Return a description of a machine, given its missing features and the reasons."""
    return Description(
        missing=[
            f"{name}: {consequence} ({missing[name]})" for name, consequence in FEATURES.items() if name in missing
        ]
    )
