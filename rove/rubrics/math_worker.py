"""The program of a math worker: a line in, [seconds, answer, response], a line out, the verdict. Knows nothing of rove.

It is started by path, not as part of a package, so that it loads math-verify and little else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

MEMORY = 2 << 30
"""Bytes of address space beyond what is there after the imports: more than any honest answer takes."""


def limit_memory() -> None:
    """Let allocations fail beyond `MEMORY`, where the system can do that."""
    try:
        import resource

        with open("/proc/self/statm") as sizes:
            used = int(sizes.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    except (ImportError, OSError, ValueError):
        return


def verdict(answer: str, response: str) -> dict[str, Any]:
    """{"correct": …}, or {"unreadable": true} where the right answer itself is no mathematics."""
    from math_verify import parse, verify

    # Its own time limits are signals that Python code must see; ours, below, need nobody's cooperation.
    known = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    if not known:
        return {"unreadable": True}
    said = parse(f"\\boxed{{{response}}}", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    return {"correct": bool(verify(known, said, timeout_seconds=None))}


def serve(reply: Callable[[dict[str, Any]], None]) -> None:
    """Answer until the input ends; a comparison that takes too long ends this process."""
    limit_memory()
    for line in sys.stdin:
        seconds, answer, response = json.loads(line)
        # Death by default, wherever the process hangs, in Python or not.
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            said = verdict(answer, response)
        except Exception as error:
            said = {"failed": f"{type(error).__name__}: {error}"[:500]}
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        reply(said)


def main() -> None:
    """Load math-verify and say so; then let a child answer, and another one whenever it dies: that takes no time."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what libraries print is no verdict

    def reply(value: dict[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    try:
        verdict("1", "1")  # imports and tables, before the first clock runs
    except Exception as error:
        reply({"failed": f"{type(error).__name__}: {error}"})
        return
    reply({"ready": True})
    while True:
        child = os.fork()
        if child == 0:
            serve(reply)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return
        reply({"timeout": True} if status == -signal.SIGALRM else {"died": status})


if __name__ == "__main__":
    main()
