"""Files of lines that somebody else is writing."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from rove.core.errors import RunError
from rove.runs.schema import decoded_row
from rove.utils.files import open_regular, read_lines

SAMPLE = 4096
"""Bytes at either end of what has been read by which a file is recognised."""


def mark(file: BinaryIO, end: int) -> bytes:
    """What the first `end` bytes of a file are recognised by: resumed training cuts it, and never writes the same times again."""
    file.seek(0)
    head = file.read(min(end, SAMPLE))
    file.seek(max(0, end - SAMPLE))
    return hashlib.blake2b(head + file.read(min(end, SAMPLE)), digest_size=16).digest()


class GrowingLines:
    """The objects of a small file of JSON lines, as far as they have been written.

    Args:
        file: it may not be there yet.
    """

    def __init__(self, file: Path):
        self.file = file
        self.rows: list[dict[str, Any]] = []
        self.bad = 0
        """Lines that cannot be read."""
        self.life = 0
        """How often the file was cut, and read anew."""
        self._end = 0
        self._mark = b""
        self._seen: tuple[int, ...] = ()
        self._lock = Lock()

    def catch_up(self) -> None:
        """Read what is new; a last line without its end is waited for.

        Raises:
            RunError: the file is something other than a regular file.
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
        if mark(lines, self._end) != self._mark:
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
        self._mark = mark(lines, self._end)

    def _start_over(self) -> None:
        self.life += bool(self._end)
        self.rows, self.bad, self._end, self._seen = [], 0, 0, ()
