"""A seccomp filter: the kernel refuses system calls that no program in a sandbox needs.

It lists refused calls rather than allowed calls, because unknown libraries must run. It refuses calls that reach beyond
the process (memory of other processes, mounts, namespaces, clocks, the kernel), the network, memory without limits
(anonymous files, System V and POSIX queues and segments), and what sessions and the host could share through readable
files: locks, leases, watches, and the machine's asynchronous I/O.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

from . import kernel

# name: (x86_64, aarch64); None = the architecture has no such call. From 424 on the numbers are the same.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "flock": (73, 32),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "unshare": (272, 97),
    "setns": (308, 268),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "syslog": (103, 116),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
}
"""Name of a refused system call → its numbers. `socketpair` is allowed, because asyncio and multiprocessing need it within a
process tree."""

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
CLONE, CLONE3 = (56, 220), 435
NAMESPACES = 0x7E020080
"""Flags of clone(2) that create namespaces."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
FCNTL = (72, 25)
SHARED_FCNTL = (1024, 1026)
"""F_SETLEASE, F_NOTIFY: commands of fcntl(2) that affect other processes through a readable file."""

ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
X32 = 0x40000000


def program(machine: str) -> bytes:
    """Return the filter in the kernel's format: struct sock_filter, whose jumps count skipped instructions."""
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"seccomp: no table of system calls for {machine}")
    column, architecture = ARCHITECTURES[machine]
    lines = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),  # 32-bit calls have other numbers and would pass the filter below
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32),  # the x32 variants of calls, whose numbers would pass the filter as well
        (RETURN, 0, 0, REFUSE | errno.ENOSYS),
    ]
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | errno.EPERM)]
    lines += [
        # clone3 has its flags behind a pointer, which a filter cannot read; with ENOSYS libraries fall back to clone
        (EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, REFUSE | errno.ENOSYS),
        (EQUAL, 0, 3, CLONE[column]),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY_BIT, 0, 1, NAMESPACES),
        (RETURN, 0, 0, REFUSE | errno.EPERM),
        (LOAD, 0, 0, NUMBER),
        (EQUAL, 0, 4, FCNTL[column]),
        (LOAD, 0, 0, SECOND_ARGUMENT),
        (EQUAL, 1, 0, SHARED_FCNTL[0]),
        (EQUAL, 0, 1, SHARED_FCNTL[1]),
        (RETURN, 0, 0, REFUSE | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


def install() -> None:
    """Install the filter for this process and its children; needs `no_new_privs` or privileges."""
    code = program(platform.machine())
    buffer = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    kernel.prctl(kernel.SET_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(head)))
