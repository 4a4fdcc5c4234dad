"""Read JSON lines from a file that another process appends to."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from rove.core.errors import RunError
from rove.runs.schema import decoded_row
from rove.utils.files import open_regular, read_lines

FINGERPRINT_BYTES = 4096
"""Bytes at the start and end of the read part that identify it."""


def prefix_fingerprint(file: BinaryIO, end: int) -> bytes:
    """Return a fingerprint of the first `end` bytes; it shows that resumed training has cut and rewritten the file."""
    file.seek(0)
    head = file.read(min(end, FINGERPRINT_BYTES))
    file.seek(max(0, end - FINGERPRINT_BYTES))
    return hashlib.blake2b(head + file.read(min(end, FINGERPRINT_BYTES)), digest_size=16).digest()


class JsonlTail:
    """The rows of a small file of JSON lines, up to the last complete line.

    Args:
        file: May not exist yet.
    """

    def __init__(self, file: Path):
        self.file = file
        self.rows: list[dict[str, Any]] = []
        self.bad = 0
        """Number of unreadable lines."""
        self.life = 0
        """How often the file was cut or replaced."""
        self._end = 0
        self._fingerprint = b""
        self._seen: tuple[int, ...] = ()
        self._lock = Lock()

    def catch_up(self) -> None:
        """Read new lines; an incomplete last line is left for the next call.

        Raises:
            RunError: The path is not a regular file.
        """
        with self._lock:
            try:
                with open_regular(self.file) as lines:
                    found = os.fstat(lines.fileno())
                    now = (found.st_ino, found.st_size, found.st_mtime_ns)
                    if now != self._seen:
                        self._read(lines)
                        self._seen = now
            except FileNotFoundError:
                self._start_over()

    def _read(self, lines: BinaryIO) -> None:
        if prefix_fingerprint(lines, self._end) != self._fingerprint:
            self._start_over()
        lines.seek(self._end)
        for line in read_lines(lines):
            if not line.endswith(b"\n"):
                break
            self._end += len(line)
            try:
                self.rows.append(decoded_row(line))
            except RunError:
                self.bad += 1
        self._fingerprint = prefix_fingerprint(lines, self._end)

    def _start_over(self) -> None:
        self.life += bool(self._end)
        self.rows, self.bad, self._end, self._seen = [], 0, 0, ()
