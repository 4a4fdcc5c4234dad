"""Runs a command for as long as somebody holds the other end of this program's stdin.

Run as a file by whoever must not leave the command behind, not even when killed. It needs the standard library alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

STOP_TIMEOUT_S = 10.0
"""How long the command may take to end once it is asked to."""


def main(words: list[str]) -> int:
    """Run a command in a session of its own until it ends, or stdin does; what it leaves behind is killed. Its exit code."""
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)

    def watch() -> None:
        with suppress(OSError):
            while os.read(0, 1 << 16):
                pass
        _signal(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(STOP_TIMEOUT_S)
        _signal(child.pid, signal.SIGKILL)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is told to whoever holds stdin
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
