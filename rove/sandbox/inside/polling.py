"""Waiting for file descriptors of any number; select(2) takes none above 1023."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable


def readable(reading: Iterable[int], seconds: float | None = None, writing: Iterable[int] = ()) -> set[int]:
    """Wait until one of `reading` can be read or one of `writing` can be written, or its other end is closed.

    Args:
        reading: file descriptors, none of them also in `writing`.
        seconds: most time to wait, rounded up to milliseconds; None = no limit.
        writing: file descriptors.

    Returns:
        those that are ready; none when the time is over.
    """
    poller = select.poll()
    for fd in reading:
        poller.register(fd, select.POLLIN)
    for fd in writing:
        poller.register(fd, select.POLLOUT)
    return {fd for fd, _ in poller.poll(None if seconds is None else math.ceil(seconds * 1000))}
