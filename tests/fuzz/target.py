"""A fuzz target: a parser of foreign bytes, and the property that every input must have.

The property: the parser returns a value, or raises one of rove's errors (`rove.core.errors`) with a message; nothing else. It
takes at most `MAX_CPU_S`, and its memory does not grow beyond `MAX_GROWTH_BYTES`. A target may assert more, such as that
writing and reading a value returns the same value.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rove.core.errors import Error

try:
    import resource
except ImportError:  # Windows: memory is not measured there
    resource = None

ROOT = Path(__file__).parents[2]
MAX_INPUT_BYTES = 64 << 10
"""Maximum size of an input."""
MAX_CPU_S = 2.0
"""Maximum CPU time for an input. Wall time would depend on other processes of the machine."""
MAX_GROWTH_BYTES = 256 << 20
"""Maximum growth of the process's peak memory during an input."""
MIN_MESSAGE_CHARS = 12
"""An error with a shorter message cannot name what is wrong and what was expected."""


class Target(NamedTuple):
    """A parser to fuzz."""

    name: str
    run: Callable[[bytes], object]
    """Reads an input; raises AssertionError if the parser violates a property of this target."""
    seeds: tuple[str, ...]
    """Folders and files whose literals are the first inputs, relative to the repository; see `seeds`."""
    words: tuple[str, ...] = ()
    """Texts that the fuzzer inserts into inputs."""


class BadErrorError(AssertionError):
    """The message of a rove error is too short."""


class SlowInputError(AssertionError):
    """An input took more than `MAX_CPU_S`."""


class LargeInputError(AssertionError):
    """An input took more than `MAX_GROWTH_BYTES`."""


def check(target: Target, data: bytes) -> None:
    """Run a target on an input; raise an exception if the input breaks the property."""
    started, peak = time.process_time(), _peak_bytes()
    try:
        target.run(data)
    except Error as error:
        if len(str(error)) < MIN_MESSAGE_CHARS:
            raise BadErrorError(f"{type(error).__name__} has only the message {str(error)!r}") from error
    seconds, growth = time.process_time() - started, _peak_bytes() - peak
    if seconds > MAX_CPU_S:
        raise SlowInputError(f"{seconds:.1f} CPU-seconds for {len(data):,} bytes; expected at most {MAX_CPU_S:g}")
    if growth > MAX_GROWTH_BYTES:
        raise LargeInputError(f"{growth:,} bytes of memory for {len(data):,}; expected at most {MAX_GROWTH_BYTES:,}")


def _peak_bytes() -> int:
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def failure_name(error: BaseException) -> str:
    """Return a name that failures with the same cause share: the type, and the last line of rove or of the targets."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if str(ROOT) in frame.filename]
    own_frames = [frame for frame in frames if f"{ROOT}/rove/" in frame.filename] or frames
    location = f"{Path(own_frames[-1].filename).stem}-{own_frames[-1].lineno}" if own_frames else "nowhere"
    return f"{type(error).__name__}-{location}"


def text_of(data: bytes) -> str:
    """Return an input as a text, as an HTTP response is decoded."""
    return data.decode(errors="replace")


def parts_of(data: bytes, count: int) -> list[bytes]:
    """Split an input into `count` parts at lines of dashes; missing parts are empty."""
    parts = data.split(b"\n----\n", count - 1)
    return parts + [b""] * (count - len(parts))


def write(folder: Path, name: str, data: bytes) -> Path:
    """Write an input into a file, and return the file."""
    file = folder / name
    file.write_bytes(data)
    return file
