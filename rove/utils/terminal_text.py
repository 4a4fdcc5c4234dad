"""Text that rove did not write, made safe for a terminal.

A model's reply, a server's error body, the name of an environment and the content of a file may contain control characters.
A terminal obeys them: they move the cursor, change the title, write the clipboard (OSC 52), hide an address behind a link
(OSC 8), or reverse the order of the text. `inert` shows them as text. `protect_terminal` applies it to what Python itself
prints: warnings, log records and tracebacks.
"""

from __future__ import annotations

import codecs
import json
import logging
import os
import sys
import threading
import traceback
import unicodedata
import warnings
from collections.abc import Callable
from types import TracebackType

ESCAPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that are shown as escapes: control, format (such as bidirectional overrides), surrogates, separators."""
ALLOWED = frozenset("\n\t\u200c\u200d")
"""Characters of these categories that are not escaped: line ends, tabs, and the joiners that Persian, Hindi and emoji need."""
FALLBACKS = {
    "·": "-",
    "•": "*",
    "→": "->",
    "←": "<-",
    "…": "...",
    "–": "-",
    "—": "-",
    "−": "-",
    "≥": ">=",
    "≤": "<=",
    "×": "x",
    "±": "+-",
    "σ": "sd",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "\N{NO-BREAK SPACE}": " ",
    **dict(zip("▁▂▃▄▅▆▇█", "_.,-=+*#")),
}
"""Replacements for characters that rove itself prints, for outputs whose encoding lacks them."""
ENCODING_ERRORS = "rove_terminal"
"""Name of the error handler that replaces characters which an encoding lacks."""


def inert(text: str) -> str:
    """Return the text with control characters as visible escapes such as \\x1b, so that a terminal only displays it."""
    if text.isprintable():
        return text
    return "".join(map(_visible, text.replace("\r\n", "\n")))


def inert_json(text: str) -> str:
    """Return a JSON document with control characters in its strings as JSON escapes: the same value, safe to display."""
    if text.isprintable():
        return text
    return "".join(json.dumps(char)[1:-1] if _is_escaped(char) else char for char in text)


def inert_toml(text: str) -> str:
    """Return a TOML document with control characters in its strings as TOML escapes: the same value, safe to display."""
    if text.isprintable():
        return text
    return "".join(_toml_escape(char) if _is_escaped(char) else char for char in text)


def _is_escaped(char: str) -> bool:
    return unicodedata.category(char) in ESCAPED_CATEGORIES and char not in ALLOWED


def _visible(char: str) -> str:
    if not _is_escaped(char):
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return _toml_escape(char)


def _toml_escape(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Return a replacement for characters that the output's encoding lacks: a similar character, else an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(FALLBACKS.get(char) or _escape(char) for char in lacking), error.end


def _escape(char: str) -> str:
    return char.encode("ascii", "backslashreplace").decode("ascii")


class _InertFormatter(logging.Formatter):
    """Formats log records for a terminal."""

    def __init__(self, inner: logging.Formatter | None = None):
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text without control characters."""
        return inert(self._inner.format(record))


def make_logs_inert() -> None:
    """Escape control characters in log records: in all handlers of the root logger, or else in Python's fallback."""
    handlers = list(logging.getLogger().handlers)
    if logging.lastResort is not None:
        handlers.append(logging.lastResort)
    for handler in handlers:
        if not isinstance(handler.formatter, _InertFormatter):
            handler.setFormatter(_InertFormatter(handler.formatter))


def make_encodable(*streams: object) -> None:
    """Make streams print every text: characters that their encoding lacks are replaced, instead of a UnicodeEncodeError."""
    codecs.register_error(ENCODING_ERRORS, _replace_unencodable)
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=ENCODING_ERRORS)


def hide_progress_bars() -> None:
    """Turn off the progress bars of other libraries if the output is not a terminal: each update would be a line in a log.

    Call this before tqdm is imported, because tqdm reads the environment variable on import.
    """
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")


def protect_terminal() -> None:
    """Make the output of this process safe and encodable: both streams, warnings, log records and uncaught exceptions."""
    make_encodable(sys.stdout, sys.stderr)
    make_logs_inert()
    sys.excepthook = _print_exception
    threading.excepthook = _print_thread_exception
    if not isinstance(warnings.formatwarning, _InertWarnings):
        warnings.formatwarning = _InertWarnings(warnings.formatwarning)


class _InertWarnings:
    """Formats warnings for a terminal."""

    def __init__(self, inner: Callable[..., str]):
        self._inner = inner

    def __call__(self, *args: object, **named: object) -> str:
        return inert(self._inner(*args, **named))


def _print_exception(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    sys.stderr.write(inert("".join(traceback.format_exception(kind, error, trace))))


def _print_thread_exception(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit:
        _print_exception(args.exc_type, args.exc_value, args.exc_traceback)
