"""The supervisor as the first process of a container; its standard streams are the connection to the host."""

from __future__ import annotations

import contextlib
import json
import os
import traceback

from . import kernel, seccomp
from .frames import write_frame
from .supervisor import Supervisor


def main(limits: str) -> None:
    """Serve the host until it closes the connection.

    Args:
        limits: Fields of `rove.sandbox.SandboxLimits` as JSON.
    """
    requests, answers, null = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    try:
        kernel.prctl(kernel.SET_DUMPABLE, 0)
        kernel.prctl(kernel.SET_NO_NEW_PRIVS, 1)
        with contextlib.suppress(OSError):  # the container has a filter already; this one is stricter
            seccomp.install()
        # the container limits processes: RLIMIT_NPROC would count those of other containers with the same user
        settings = {**json.loads(limits), "processes": -1}
        Supervisor(requests, answers, settings, os.getcwd(), alone=os.getpid() == 1).serve()
    except BaseException:
        write_frame(answers, {"broken": traceback.format_exc()[-4000:]})
    os._exit(0)
