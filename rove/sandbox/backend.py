"""The interface of sandboxes: a backend opens sessions, and a session runs code.

Environments use only this interface; `LocalBackend` and `DockerBackend` implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from rove.core.checks import Settings
from rove.core.ranges import PositiveInt, Seconds

Functions = Mapping[str, Callable[..., Any]]
"""Host functions that code may call, by name; they may be async. Arguments and results are JSON: numbers, texts, lists and
dicts. The code chooses the arguments: check them.
"""


class SandboxLimits(Settings, frozen=True, kw_only=True):
    """Limits of one session.

    Raises:
        ConfigError: A limit is out of range.
    """

    seconds: Seconds = 10.0
    """Default time limit of one call."""
    cpu_seconds: PositiveInt = 60
    """Maximum CPU seconds of one process, over all calls."""
    memory_bytes: PositiveInt = 1 << 30
    """Maximum address space of one process. With control groups, also the limit for the memory of all processes and files of the
    session."""
    processes: PositiveInt = 32
    """Maximum number of concurrent processes and threads, including two of rove."""
    disk_bytes: PositiveInt = 64 << 20
    """Maximum size of the session's folder, which is in memory."""
    files: PositiveInt = 4096
    """Maximum number of files and folders in the session's folder."""
    file_bytes: PositiveInt = 32 << 20
    """Maximum size of one file."""
    open_files: PositiveInt = 256
    """Maximum number of open files of one process."""
    output_chars: PositiveInt = 8192
    """Maximum bytes of a call's output, and of its value or traceback; longer text loses its middle."""
    message_bytes: PositiveInt = 4 << 20
    """Maximum size of a host function's arguments, and of its result, as JSON."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call. Its texts were written by the code that ran, so they are untrusted; `output_chars` limits them."""

    output: str = ""
    """Standard output and standard error, interleaved."""
    value: str = ""
    """`repr` of the last expression of Python code; "" for None or without an expression."""
    error: str = ""
    """Cause of the failure: a traceback, or the reason why the call was ended. "" = the call succeeded."""
    exit_code: int | None = None
    """Exit status of a bash command; 128 + n if signal n ended it."""
    timed_out: bool = False
    """Whether the call reached its time limit."""
    truncated: bool = False
    """Whether text was shortened."""
    restarted: bool = False
    """Whether Python's variables and all processes of the session were lost; files are kept."""
    files_lost: bool = False
    """Whether the whole session was restarted, so that its files were lost as well."""
    seconds: float = 0.0
    """Duration of the call in seconds."""

    @property
    def ok(self) -> bool:
        """Whether the call succeeded: no exception, and no exit status other than 0."""
        return not self.error and not self.exit_code

    def text(self) -> str:
        """Return the whole result as one text for a model: output, value, error, exit status, and a note about losses."""
        lost = "files and variables" if self.files_lost else "variables"
        parts = [
            self.output.rstrip("\n"),
            self.value,
            self.error,
            f"[exit status {self.exit_code}]" if self.exit_code else "",
            f"[the sandbox was restarted: {lost} are gone]" if self.restarted else "",
        ]
        return "\n".join(part for part in parts if part)


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that a backend cannot enforce on this machine."""

    missing: list[str]
    """Sentences about these limits, with the reasons."""


class Session(Protocol):
    """One isolated session with one Python interpreter. Calls run one after the other; always close it."""

    async def run_python(self, code: str, seconds: float | None = None, functions: Functions | None = None) -> Result:
        """Run Python code; variables persist until the next restart.

        Args:
            code: One or more lines.
            seconds: Time limit in seconds; None = the session's default limit. The time of host functions does not count,
                except for a millisecond per call, so that their number is bounded.
            functions: Host functions that the code can call like ordinary blocking functions, one call at a time. A name is
                defined only in calls that pass it. An exception of a function becomes a RuntimeError in the code; InfraError and
                LimitReachedError end the call and the session's processes, and are raised here.

        Raises:
            ConfigError: `seconds` is not positive and finite, or a function's name is not an identifier.
            SandboxError: The sandbox itself failed; errors of the code are in the result.
        """
        ...

    async def bash(self, command: str, seconds: float | None = None) -> Result:
        """Run a bash command in the session's folder; background processes run until the session ends.

        Raises:
            SandboxError: The sandbox itself failed.
        """
        ...

    async def put(self, path: str, data: bytes) -> None:
        """Write a file; relative paths start in the session's folder.

        Raises:
            SandboxFileError: The file cannot be written.
        """
        ...

    async def get(self, path: str) -> bytes:
        """Read a file of at most `file_bytes`.

        Raises:
            SandboxFileError: The file does not exist, is not a regular file, or is too large.
        """
        ...

    async def close(self) -> None:
        """End every process of the session and delete its files; may be called again."""
        ...


class Backend(Protocol):
    """Opens sessions. Use it with `async with`, or close it."""

    limits: SandboxLimits
    """Default limits of a session."""

    async def open(self, limits: SandboxLimits | None = None) -> Session:
        """Open a session; wait while the maximum number is open. If `limits` is None, the backend's limits apply.

        Raises:
            ConfigError: This machine lacks a required feature.
            SandboxError: The session could not be started.
        """
        ...

    async def describe(self) -> Description:
        """Describe the limits that this machine cannot enforce."""
        ...

    async def close(self) -> None:
        """Close all sessions and end every process."""
        ...
