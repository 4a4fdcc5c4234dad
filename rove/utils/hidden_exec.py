"""Run a program that cannot read the memory and the environment of other processes: python hidden_exec.py PROGRAM [ARGUMENTS].

On Linux, every process of a user can read /proc/PID/environ of the user's other processes. A process in a Landlock domain can
read it only for processes of its own domain. The domain made here restricts nothing else that programs use: a domain must
restrict at least one file operation, and this one restricts the creation of block devices. Two capabilities of root overrule
the domain (since Linux 6.14), so the program loses them. Without Landlock (Linux before 5.13), the program runs as it is.

This file is run as a script and imports nothing of rove, so that it starts fast.
"""

import ctypes
import os
import sys

CREATE_RULESET, RESTRICT_SELF = 444, 446
"""Numbers of the two system calls; they are the same on all architectures."""
MAKE_BLOCK_DEVICES = 1 << 11
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
CAP_SYS_ADMIN, CAP_PERFMON = 21, 38


def enter_domain() -> bool:
    """Put this process and its later children into a new Landlock domain; return whether that worked."""
    libc = ctypes.CDLL(None, use_errno=True)
    rights = ctypes.c_uint64(MAKE_BLOCK_DEVICES)
    ruleset = libc.syscall(CREATE_RULESET, ctypes.byref(rights), ctypes.c_size_t(8), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    try:
        if libc.syscall(RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) != 0:
            # Without CAP_SYS_ADMIN, the process must first give up setuid programs.
            libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            return libc.syscall(RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0
        for capability in (CAP_SYS_ADMIN, CAP_PERFMON):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        return True
    finally:
        os.close(ruleset)


if __name__ == "__main__":
    enter_domain()
    os.execvp(sys.argv[1], sys.argv[1:])
