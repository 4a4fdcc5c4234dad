"""What can go wrong, as one tree.

Error
├── ConfigError             a setting, flag, file or name is wrong (also a ValueError)
│   └── MissingKeyError     an environment variable that is needed is not set
├── ModelError              the model did not answer usably
│   ├── InvalidModelResponseError
│   │   └── EmptyModelResponseError
│   └── OverlongPromptError the prompt does not fit the model's context (ends the rollout, truncated)
├── ToolError               a tool call went wrong, and the environment wants the rollout to end
│   ├── ToolParseError      the call cannot be read, or does not fit the tool
│   └── ToolCallError       the tool failed
├── AgentError              a foreign agent failed
├── InfraError              the endpoint or the machine failed, after bounded retries
│   ├── SandboxError        a sandbox could not be started, or died and could not be made anew
│   ├── MCPServerError      an MCP server could not be started, or ended
│   └── WorkerError         a worker process could not be started, ended, or did not answer in time
├── RemoteError             code in a worker process raised
├── SandboxFileError        a file of a sandbox cannot be read or written as asked
├── LimitReachedError       a rollout has used up what it may use (ends it; it is scored as it stands)
├── TooManyErrorsError      so many rollouts failed that going on makes no sense
├── RunError                a run folder cannot be used as asked
├── PackageError            an environment package, its manifest or its signature is not what it should be
└── HubError                a hub refuses, or does not have what is asked for
    └── TrustError          a package is not what its hash, its signature or the lock file promises
"""

from __future__ import annotations

import asyncio
import difflib
import json
import traceback
from collections.abc import Iterable, Sequence


class Error(Exception):
    """Base of every error rove raises itself."""

    attempts: Sequence[str] = ()
    """One line per failed try, oldest first; empty where nothing was tried again."""


class ConfigError(Error, ValueError):
    """A setting, flag, file or name is wrong; the message says what was given, what is expected and how to fix it."""


class MissingKeyError(ConfigError):
    """An environment variable that is needed is not set."""


class ModelError(Error):
    """The model did not give a usable answer."""


class InvalidModelResponseError(ModelError):
    """The answer is not what the protocol promises (garbage, wrong shape)."""


class EmptyModelResponseError(InvalidModelResponseError):
    """The answer has neither text nor tool calls."""


class OverlongPromptError(ModelError):
    """The prompt does not fit the model's context; the rollout ends as truncated and is scored as it stands."""


class ToolError(Error):
    """A tool call went wrong."""


class ToolParseError(ToolError):
    """A tool call cannot be read, names no tool there is, or does not fit its arguments."""


class ToolCallError(ToolError):
    """A tool failed; its own error is the cause."""


class AgentError(Error):
    """A foreign agent failed, not the model behind it; its own error is the cause, where it runs in this process."""


class InfraError(Error):
    """The endpoint or the machine failed, after bounded retries: `attempts`."""

    status: int | None = None
    """HTTP status of the last try, if there was one."""

    def __init__(self, message: str = "", attempts: Iterable[str] = ()):
        super().__init__(message)
        self.attempts = list(attempts)


class SandboxError(InfraError):
    """A sandbox failed, not the code in it: it could not be started, or died and could not be made anew."""


class MCPServerError(InfraError):
    """An MCP server could not be started or reached, or ended; the message has the last lines it wrote."""


class WorkerError(InfraError):
    """A worker process could not be started, ended, or did not answer in time; the message has the last lines it wrote."""


class RemoteError(Error):
    """Code in a worker process raised.

    Args:
        message: the exception's text.
        type: name of its class.
        traceback: as the worker saw it.
        phase: of the rollout, where the worker told.
    """

    def __init__(self, message: str, type: str = "", traceback: str = "", phase: str = ""):
        super().__init__(message)
        self.type, self.traceback = type, traceback
        if phase:
            self.rove_phase = phase

    def __str__(self) -> str:
        return ": ".join(part for part in (self.type, super().__str__()) if part)


class SandboxFileError(Error):
    """A file of a sandbox cannot be read or written as asked."""


class LimitReachedError(Error):
    """A rollout has used up what it may use: it ends with this error's message as stop condition, scored as it stands."""

    truncated = False
    """Whether what was cut off would have gone on."""


class TooManyErrorsError(Error):
    """So many rollouts failed that going on makes no sense; what is finished is kept."""


class HubError(Error):
    """A hub refuses, or does not have what is asked for; the message has its words."""

    status: int | None = None
    """Of its answer, where that was one over HTTP."""


class TrustError(HubError):
    """A package is not what its hash, its owner's signature or the lock file promises; nothing of it was installed."""


class RunError(Error):
    """A run folder cannot be used as asked."""


class PackageError(Error):
    """An environment package, its manifest or its signature is not what it should be: refused before anything of it is used."""


CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
"""Command that installs PyTorch without CUDA; README shows it too."""


def missing_train_package(package: str, needed_for: str = "running or training a model in this process") -> ConfigError:
    """Return the error for a package of the `train` extra that is not installed, with the commands that install it."""
    return ConfigError(
        f"{needed_for} needs the package '{package}', which is not installed. Install rove's train extra: "
        f"pip install 'rove[train]'. On a machine without a GPU, first install the CPU build of PyTorch: {CPU_TORCH}"
    )


def in_json(value: object) -> str:
    """What was given, as whoever writes JSON knows it; Python's own words for what JSON cannot say."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def nearest(name: str, options: Iterable[str]) -> str:
    """A sentence that helps after a misspelt name: the closest option if there is one, else all of them."""
    known = sorted(options)
    close = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(known)}" if known else "none are known here"


class phase:
    """Context that marks exceptions leaving it with the part of a rollout they came from; the innermost mark stays."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not hasattr(error, "rove_phase"):
            error.rove_phase = self.name  # pyright: ignore[reportAttributeAccessIssue]


def phase_of(error: BaseException) -> str:
    """The part of a rollout an exception came from, as marked by `phase`; "rollout" when nothing marked it."""
    return getattr(error, "rove_phase", "rollout")


def ends_task(error: BaseException) -> bool:
    """Whether an exception has to leave the code that keeps a rollout's failures inside of it.

    Those are KeyboardInterrupt, GeneratorExit and the cancellation of this very task, not of something that it waited for.
    Anything else is a failure of the rollout, exit() and the panics of extension modules included.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, (KeyboardInterrupt, GeneratorExit))


def what_ended(error: BaseException) -> str:
    """Describe the exception that ended a run, for people."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by the user"
    if isinstance(error, asyncio.CancelledError):
        return "interrupted"
    return str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"


def traceback_text(error: BaseException, limit: int = 8000) -> str:
    """The traceback as text, its oldest lines cut beyond `limit` characters."""
    text = "".join(traceback.format_exception(error))
    return text if len(text) <= limit else "…" + text[-limit:]
