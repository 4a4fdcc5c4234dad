"""Looking for a text in every rollout of a run, in a process of its own: a bad pattern cannot keep the server from answering.

    python -m rove.viewer.search FILE < QUERY

prints a JSON line for every hit and, about five times a second, one of how far it is.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rove.core.errors import ConfigError, RunError
from rove.core.messages import text_of
from rove.core.records import RolloutRecord
from rove.runs.serialization import decode_record
from rove.utils.files import open_regular, read_lines

AROUND = 60
"""Characters shown on either side of what was found."""
EVERY = 0.2
"""Seconds between two reports."""


class Query(msgspec.Struct, frozen=True):
    """What is looked for."""

    text: str
    regex: bool = False
    case: bool = False
    """Whether "A" and "a" differ."""
    most: int = 200
    """Hits after which it ends."""

    def pattern(self) -> re.Pattern[str]:
        """As a regular expression.

        Raises:
            ConfigError: it is none, or nothing.
        """
        if not self.text:
            raise ConfigError("nothing to look for; give some text")
        try:
            return re.compile(self.text if self.regex else re.escape(self.text), 0 if self.case else re.IGNORECASE)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"not a regular expression: {error}") from error


def found_in(lines: BinaryIO, query: Query) -> Iterator[dict[str, Any]]:
    """Hits, as {"line", "role", "before", "found", "after"}, and reports, as {"bytes"}; the last one has `done` and `hits`.

    A rollout is told once, with the first message that has the text.
    """
    pattern, hits, seen, reported = query.pattern(), 0, 0, time.monotonic()
    might_have = _quick(query)
    for number, line in enumerate(read_lines(lines)):
        if not line.endswith(b"\n") or hits >= query.most:
            break
        seen += len(line)
        hit = _hit(line, pattern) if might_have(line) else None
        if hit is not None:
            hits += 1
            yield {"line": number, **hit}
        if time.monotonic() - reported > EVERY:
            reported = time.monotonic()
            yield {"bytes": seen}
    yield {"bytes": seen, "hits": hits, "done": True}


def _quick(query: Query) -> Callable[[bytes], bool]:
    """Whether a line may have the text at all, told without decoding it."""
    written = msgspec.json.encode(query.text)[1:-1]
    if query.regex or b"\\" in written or (not query.case and not query.text.isascii()):
        return lambda line: True
    if query.case:
        return lambda line: written in line
    low = written.lower()
    return lambda line: low in line.lower()


def _hit(line: bytes, pattern: re.Pattern[str]) -> dict[str, Any] | None:
    try:
        record = decode_record(line[:-1])
    except RunError:
        return None
    for role, text in _texts(record):
        if found := pattern.search(text):
            start, end = found.span()
            before, after = text[max(0, start - AROUND) : start], text[end : end + AROUND]
            return {"role": role, "before": before, "found": text[start : min(end, start + 400)], "after": after}
    return None


def _texts(record: RolloutRecord) -> Iterator[tuple[str, str]]:
    """Whatever a rollout says, with who says it."""
    for message in (*record.prompt, *record.completion):
        try:
            yield str(message.get("role")), text_of(message)
        except (AttributeError, TypeError):
            continue
        for name in ("reasoning_content", "reasoning", "tool_calls"):
            if message.get(name):
                value = message[name]
                yield f"{message.get('role')}, {name}", value if isinstance(value, str) else str(value)
    if record.answer:
        yield "answer", record.answer
    if record.error is not None:
        yield "error", f"{record.error.phase}: {record.error.type}: {record.error.message}\n{record.error.traceback}"


def main() -> None:
    """Read the query, print what is found."""
    query = msgspec.json.decode(sys.stdin.buffer.read(), type=Query)
    with open_regular(Path(sys.argv[1])) as lines:
        for told in found_in(lines, query):
            sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
