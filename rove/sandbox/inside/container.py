"""The supervisor as the first process of a container: the container is the room, its standard streams the connection."""

from __future__ import annotations

import contextlib
import json
import os
import traceback

from . import kernel, seccomp
from .frames import write_frame
from .supervisor import Supervisor


def main(limits: str) -> None:
    """Serve the host until it is gone. `limits`: fields of `rove.sandbox.SandboxLimits` as JSON."""
    requests, answers, nothing = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    try:
        kernel.prctl(kernel.SET_DUMPABLE, 0)
        kernel.prctl(kernel.SET_NO_NEW_PRIVS, 1)
        with contextlib.suppress(OSError):  # the container has a filter of its own; ours is stricter
            seccomp.install()
        # the number of processes is the container's to count: this user may be that of other containers, too
        told = {**json.loads(limits), "processes": -1}
        Supervisor(requests, answers, told, os.getcwd(), alone=os.getpid() == 1).serve()
    except BaseException:
        write_frame(answers, {"broken": traceback.format_exc()[-4000:]})
    os._exit(0)
