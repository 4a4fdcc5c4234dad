"""Search the text of every rollout of a run, in a separate process, because a slow pattern must not block the server.

    python -m rove.viewer.search FILE < QUERY

prints a JSON line for every hit and, about five times a second, a line with the progress.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from rove.core.errors import ConfigError, RunError
from rove.core.messages import text_of
from rove.core.records import RolloutRecord
from rove.runs.serialization import decode_record
from rove.utils.files import open_regular, read_lines

CONTEXT_CHARS = 60
"""Maximum characters shown before and after a hit."""
REPORT_INTERVAL_S = 0.2
"""Seconds between progress reports."""


class Query(msgspec.Struct, frozen=True):
    """A search."""

    text: str
    regex: bool = False
    case: bool = False
    """Whether the search is case-sensitive."""
    max_hits: int = 200
    """Maximum number of hits, after which the search ends."""

    def pattern(self) -> re.Pattern[str]:
        """Return the search as a regular expression."""
        if not self.text:
            raise ConfigError("the search text is empty; expected some text")
        try:
            return re.compile(self.text if self.regex else re.escape(self.text), 0 if self.case else re.IGNORECASE)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"the pattern is not a regular expression: {error}") from error


def search_lines(lines: BinaryIO, query: Query) -> Iterator[dict[str, object]]:
    """Yield hits, as {"line", "role", "before", "found", "after"}, and reports, as {"bytes"}; the last has `done` and `hits`.

    A rollout yields one hit, for the first message that matches.
    """
    pattern, hits, bytes_read, reported = query.pattern(), 0, 0, time.monotonic()
    might_have = _line_filter(query)
    for number, line in enumerate(read_lines(lines)):
        if not line.endswith(b"\n") or hits >= query.max_hits:
            break
        bytes_read += len(line)
        hit = _hit(line, pattern) if might_have(line) else None
        if hit is not None:
            hits += 1
            yield {"line": number, **hit}
        if time.monotonic() - reported > REPORT_INTERVAL_S:
            reported = time.monotonic()
            yield {"bytes": bytes_read}
    yield {"bytes": bytes_read, "hits": hits, "done": True}


def _line_filter(query: Query) -> Callable[[bytes], bool]:
    """Return a function that checks whether an encoded line may match, so that most lines need not be decoded."""
    if query.regex or "\\" in query.text or not (query.case or query.text.isascii()):
        return lambda line: True
    # Words rather than the whole text: `_texts` joins several values, such as "phase: type" of an error. JSON escapes no word,
    # and lower() of bytes changes only ASCII letters.
    words = {word.encode().lower() for word in re.findall(r"\w+", query.text)}

    def might_have(line: bytes) -> bool:
        lowered = line.lower()
        # The parts of a content are joined without a space, so a word may continue in the next part.
        return b'"content":[' in line or all(word in lowered for word in words)

    return might_have


def _hit(line: bytes, pattern: re.Pattern[str]) -> dict[str, object] | None:
    try:
        record = decode_record(line[:-1])
    except RunError:
        return None
    for role, text in _texts(record):
        if match := pattern.search(text):
            start, end = match.span()
            prefix, suffix = text[max(0, start - CONTEXT_CHARS) : start], text[end : end + CONTEXT_CHARS]
            return {"role": role, "before": prefix, "found": text[start : min(end, start + 400)], "after": suffix}
    return None


def _texts(record: RolloutRecord) -> Iterator[tuple[str, str]]:
    """Yield the texts of a rollout with their roles."""
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
        error = record.error
        yield "error", f"{error.phase}: {error.type}: {error.message}\n{error.traceback}"


def main() -> None:
    """Read the query from standard input and print the hits."""
    query = msgspec.json.decode(sys.stdin.buffer.read(), type=Query)
    with open_regular(Path(sys.argv[1])) as lines:
        for progress in search_lines(lines, query):
            sys.stdout.buffer.write(msgspec.json.encode(progress) + b"\n")
            sys.stdout.buffer.flush()  # a pipe collects kilobytes, and the page shows hits as they come


if __name__ == "__main__":
    main()
