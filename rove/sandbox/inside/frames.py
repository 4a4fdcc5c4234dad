"""Messages over a byte stream: four bytes of length, then JSON."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

LENGTH = struct.Struct("<I")


def write_frame(fd: int, message: dict[str, Any]) -> None:
    """Write a message; blocks while the other side does not read."""
    body = json.dumps(message).encode()
    write_all(fd, LENGTH.pack(len(body)) + body)


def read_frame(fd: int) -> dict[str, Any] | None:
    """Return the next message; None at the end of the stream."""
    head = read_all(fd, LENGTH.size)
    body = read_all(fd, LENGTH.unpack(head)[0]) if head else None
    return json.loads(body) if body else None


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`, however long it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_all(fd: int, count: int) -> bytes | None:
    """Return exactly `count` bytes; None if the stream ends earlier."""
    data = bytearray()
    while len(data) < count:
        piece = os.read(fd, min(count - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
    return bytes(data)
