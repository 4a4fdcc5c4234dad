"""Text of bounded length, however much is written."""

from __future__ import annotations


class Clipped:
    """Keeps the beginning and the end of a stream of bytes.

    Args:
        limit: most bytes to keep.
    """

    def __init__(self, limit: int):
        self.head, self.tail, self.limit, self.total = bytearray(), bytearray(), limit, 0

    def add(self, piece: bytes) -> None:
        """Take further bytes."""
        self.total += len(piece)
        room = self.limit - self.limit // 2 - len(self.head)
        if room > 0:
            self.head += piece[:room]
            piece = piece[room:]
        self.tail += piece
        if len(self.tail) > 2 * self.limit + 65536:
            del self.tail[: len(self.tail) - self.limit // 2]

    @property
    def truncated(self) -> bool:
        """Whether something was left out."""
        return self.total > self.limit

    def text(self) -> str:
        """What was kept, with a note where something is missing; never more than `limit` characters beside the note."""
        if not self.truncated:
            return (self.head + self.tail).decode(errors="replace")
        tail = self.tail[len(self.tail) - self.limit // 2 :]
        note = f"\n... [{self.total - self.limit} bytes left out] ...\n"
        return self.head.decode(errors="replace") + note + tail.decode(errors="replace")
