"""What a sandbox is to those who use it: a backend opens sessions, a session runs code.

`PythonEnv` and its relatives know nothing else; `LocalBackend` and `DockerBackend` are two answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from rove.core.config import check_positive

Functions = Mapping[str, Callable[..., Any]]
"""Async functions of the host that code may call, by name. What they are given and what they return is JSON: numbers, texts,
lists and dicts, nothing else crosses. What they are given was written by the code: data to check."""


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one session may use.

    Raises:
        ConfigError: a limit is not above 0.
    """

    seconds: float = 10.0
    """Wall time of one call; `run_python` and `bash` take another one for a single call."""
    cpu_seconds: int = 60
    """CPU time of one process, over all calls."""
    memory_bytes: int = 1 << 30
    """Address space of one process. Where there are control groups for memory: also of all processes of the session
    together, and of its files."""
    processes: int = 32
    """Processes and threads at once, two of our own included."""
    disk_bytes: int = 64 << 20
    """Size of the session's folder. It is memory."""
    files: int = 4096
    """Files and folders in it."""
    file_bytes: int = 32 << 20
    """Size of one file."""
    open_files: int = 256
    """Open files of one process."""
    output_chars: int = 8192
    """What comes back of a call: so many bytes of output and as many of a value or a traceback, the middle left out."""
    message_bytes: int = 4 << 20
    """What code gives to a function of the host in one call, as JSON; and what comes back of it."""

    def __post_init__(self) -> None:
        check_positive(self, *self.__struct_fields__)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one call. All texts were written by the code that ran: data to judge, bounded by `output_chars`."""

    output: str = ""
    """What was printed, standard output and standard error as they came."""
    value: str = ""
    """`repr` of the last expression of a piece of Python; "" where it is None or there is none."""
    error: str = ""
    """Why it failed: a traceback, or what stopped it. "" = it did not."""
    exit_code: int | None = None
    """Of a bash command; 128 + n after signal n."""
    timed_out: bool = False
    """It was stopped after its wall time."""
    truncated: bool = False
    """Something of it was left out."""
    restarted: bool = False
    """Python's variables are gone and all processes of the session ended; its files are kept."""
    files_lost: bool = False
    """The whole session had to be made anew: its files are gone as well."""
    seconds: float = 0.0
    """Wall time."""

    @property
    def ok(self) -> bool:
        """Whether it ran to its end, without an exception or an exit status other than 0."""
        return not self.error and not self.exit_code

    def text(self) -> str:
        """Everything in one text, for a model: output, value, error, exit status, and what was lost."""
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
    """What a backend enforces on this machine, in sentences."""

    enforced: list[str]
    missing: list[str]
    """What this machine could not enforce, and why."""


class Session(Protocol):
    """One room with one Python in it. Calls are run one after the other; close it whatever happens."""

    async def run_python(self, code: str, seconds: float | None = None, functions: Functions | None = None) -> Result:
        """Run Python; variables stay for the next call.

        Args:
            code: may have several lines.
            seconds: wall time, None = that of the limits. The time that `functions` take does not count; asking them takes a
                millisecond of it at least, so that there is an end to questions.
            functions: what code can call of the host, as ordinary functions that wait. One question is answered at a time; a
                name is the function's in this call, and fails in those to which it is not given. What a function raises is
                raised in the code as a RuntimeError with its words; InfraError and LimitReachedError end the call, and the
                session's processes, and are raised here.

        Raises:
            ConfigError: `seconds` is not above 0, or a function has no name that Python allows.
            SandboxError: the sandbox itself failed; what the code does wrong is in the result.
        """
        ...

    async def bash(self, command: str, seconds: float | None = None) -> Result:
        """Run a command of bash in the session's folder; processes it leaves behind go on until the session ends.

        Raises:
            SandboxError: the sandbox itself failed.
        """
        ...

    async def put(self, path: str, data: bytes) -> None:
        """Write a file; relative paths start in the session's folder.

        Raises:
            SandboxFileError: it cannot be written.
        """
        ...

    async def get(self, path: str) -> bytes:
        """Read a file of at most `file_bytes`.

        Raises:
            SandboxFileError: there is none, it is not a regular file, or it is too large.
        """
        ...

    async def close(self) -> None:
        """End every process of the session and forget its files. Closing again does nothing."""
        ...


class Backend(Protocol):
    """Where sessions come from. Use it as `async with`, or close it."""

    limits: SandboxLimits
    """Of a session that is opened without its own."""

    async def open(self, limits: SandboxLimits | None = None) -> Session:
        """A new session; waits where as many as allowed are open. `limits` None = those of the backend.

        Raises:
            ConfigError: this machine cannot enforce what it takes.
            SandboxError: it could not be started.
        """
        ...

    async def describe(self) -> Description:
        """What is enforced here, and what is not."""
        ...

    async def close(self) -> None:
        """Close all sessions and end every process."""
        ...
