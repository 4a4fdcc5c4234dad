"""Run a command until it ends or this program's stdin is closed.

The parent runs this file as a program, so that the command ends with the parent even if the parent is killed: the kernel then
closes the pipe. The program imports only the standard library.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

STOP_TIMEOUT_S = 10.0
"""Seconds to wait after SIGTERM before SIGKILL is sent."""


def main(command: list[str]) -> int:
    """Run a command in its own session until it ends or stdin is closed, then kill its process group; return the exit code."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def watch() -> None:
        with suppress(OSError):
            while os.read(0, 1 << 16):
                pass
        _signal(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(STOP_TIMEOUT_S)
        _signal(child.pid, signal.SIGKILL)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes stdin
    signal.signal(signal.SIGTERM, lambda *_: _signal(child.pid, signal.SIGTERM))
    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    _signal(child.pid, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
