"""All errors that rove raises, as one tree.

Error
├── ConfigError             a setting, flag, file or name is wrong (also a ValueError)
│   ├── MissingKeyError     a required environment variable is not set
│   └── SettingError        a setting has another type or is out of range
├── ModelError              the model returned no usable response
│   ├── InvalidModelResponseError
│   │   └── EmptyModelResponseError
│   ├── OverlongPromptError the prompt does not fit the model's context (ends the rollout, truncated)
│   └── StructuredOutputError  the requested schema or grammar became too complex while text was sampled
├── ToolError               a tool call failed and the environment ends the rollout
│   ├── ToolParseError      the call cannot be parsed or does not match the tool
│   └── ToolCallError       the tool failed
├── AgentError              an external agent failed
├── InfraError              the endpoint or the machine failed, after bounded retries
│   ├── SandboxError        a sandbox could not be started or replaced
│   ├── MCPServerError      an MCP server could not be started, or ended
│   └── WorkerError         a worker process could not be started, ended, or did not answer in time
├── RemoteError             code in a worker process raised
├── RejectedError           one of rove's servers rejects an HTTP request
├── SandboxFileError        a file of a sandbox cannot be read or written
├── LimitReachedError       a rollout reached a limit (ends the rollout, which is then scored)
├── TooManyErrorsError      more rollouts failed than allowed
├── RunError                a run folder cannot be used
├── PackageError            an environment package, its manifest or its signature is invalid
└── HubError                a hub rejected a request or does not have the package
    └── TrustError          a package does not match its hash, its signature or the lock file
"""

from __future__ import annotations

import asyncio
import difflib
import json
import reprlib
import sys
import traceback
from collections.abc import Iterable, Sequence

from rove.core.plain import is_list, is_object


class Error(Exception):
    """Base class of all errors that rove raises.

    Example:
        >>> try:
        ...     await rove.evaluate(env, client)
        ... except rove.Error as error:
        ...     print(error)
    """

    attempts: Sequence[str] = ()
    """One line per failed attempt, oldest first; empty without retries."""


def _message_lines(error: Error) -> list[str]:
    """Return the lines that IPython prints instead of a traceback: a traceback would hide the message, which says how to fix
    the cause.
    """
    return [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]


class ConfigError(Error, ValueError):
    """A setting, flag, file, or name is wrong; the message states the given value, the expected value, and a fix."""

    _render_traceback_ = _message_lines


class SettingError(ConfigError):
    """A setting or an argument has another type or is out of range; the message begins with its name."""


class MissingKeyError(ConfigError):
    """A required environment variable is not set."""


class ModelError(Error):
    """The model returned no usable response."""


class InvalidModelResponseError(ModelError):
    """The response does not follow the API's format."""


class EmptyModelResponseError(InvalidModelResponseError):
    """The response is empty, and the server reports that it did not finish the response.

    An empty response that the model itself ended is a valid answer and raises no error.
    """


class OverlongPromptError(ModelError):
    """The prompt does not fit into the model's context; the rollout ends as truncated and is scored."""


class StructuredOutputError(ModelError):
    """The requested schema or grammar became too complex while text was sampled; the request is at fault, not the model."""


class ToolError(Error):
    """A tool call failed."""


class ToolParseError(ToolError):
    """A tool call cannot be parsed, names an unknown tool, or has invalid arguments."""


class ToolCallError(ToolError):
    """A tool failed; its exception is the cause."""


class AgentError(Error):
    """An external agent, not the model, failed; if the agent runs in this process, its exception is the cause."""


class InfraError(Error):
    """The endpoint or the machine failed, even after retries (see `attempts`)."""

    status: int | None = None
    """HTTP status of the last attempt, if there was one."""

    def __init__(self, message: str = "", attempts: Iterable[str] = ()):
        super().__init__(message)
        self.attempts = list(attempts)


class SandboxError(InfraError):
    """A sandbox could not be started or replaced; the code in it is not at fault."""


class MCPServerError(InfraError):
    """An MCP server could not be started or reached, or it ended; the message contains the last lines that it wrote."""


class WorkerError(InfraError):
    """A worker process could not be started, ended unexpectedly, or timed out; the message contains its last lines."""


class RemoteError(Error):
    """Code in a worker process raised an exception.

    Args:
        message: Text of the exception.
        type: Name of its class.
        traceback: Traceback in the worker.
        phase: Phase of the rollout, if known.
    """

    def __init__(self, message: str, type: str = "", traceback: str = "", phase: str = ""):
        super().__init__(message)
        self.type, self.traceback = type, traceback
        if phase:
            mark_phase(self, phase)

    def __str__(self) -> str:
        # As Python prints an exception: the user looks for the class that the worker's code raised.
        return ": ".join(part for part in (self.type, super().__str__()) if part)


class RejectedError(Error):
    """An HTTP request that one of rove's servers rejects.

    Args:
        code: Error code of an API, such as "model_not_found".
    """

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(status, message, code)
        self.status, self.message, self.code = status, message, code

    def __str__(self) -> str:
        return self.message


class SandboxFileError(Error):
    """A file of a sandbox cannot be read or written."""


class LimitReachedError(Error):
    """A rollout reached a limit; it ends with this error's message as its stop condition and is scored.

    Args:
        stop_condition: Name of the limit, such as "max_turns_reached".
        truncated: Whether the rollout counts as truncated.
    """

    def __init__(self, stop_condition: str = "", truncated: bool = False):
        super().__init__(stop_condition)
        self.truncated = truncated


class TooManyErrorsError(Error):
    """More rollouts failed than `max_errors` allows; finished rollouts are kept."""


class HubError(Error):
    """A hub rejected a request or does not have the package; the message quotes the hub."""

    status: int | None = None
    """HTTP status of the hub's response, if there was one."""


class TrustError(HubError):
    """A package does not match its hash, its owner's signature, or the lock file; rove installs no part of it."""


class RunError(Error):
    """A run folder cannot be used."""

    _render_traceback_ = _message_lines


class PackageError(Error):
    """An environment package, its manifest, or its signature is invalid; rove uses no part of it."""


# The default wheel for Linux includes CUDA, which is a download of gigabytes.
CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
"""Command that installs PyTorch without CUDA; also in the README."""


def missing_train_package(package: str, needed_for: str = "running or training a model in this process") -> ConfigError:
    """Return the error for a package of the `train` extra that is not installed, with the commands that install it."""
    return ConfigError(
        f"{needed_for} needs the package '{package}', which is not installed. Install rove's train extra: "
        f"pip install 'rove[train]'. On a machine without a GPU, first install the CPU build of PyTorch: {CPU_TORCH}"
    )


class needs_train_extra:
    """Context manager that turns a missing package of the `train` extra into an error with advice."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        package = missing_package(error)
        if package is not None:
            raise missing_train_package(package) from error


def missing_package(error: BaseException | None) -> str | None:
    """Return the missing package that an error reports; None for other errors, and for modules that pip cannot install."""
    # transformers reports a failed import of its own modules without a name; the cause tells whether a package is missing.
    while isinstance(error, ImportError) and error.name is None:
        error = error.__cause__
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    is_own = package == "rove" or package in sys.stdlib_module_names
    return None if is_own else error.name


def as_json(value: object) -> str:
    """Return a value as JSON for an error message; as `str` if JSON cannot represent it."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    # A key that is not a text, a list that contains itself, deep nesting.
    except (TypeError, ValueError, RecursionError):
        return str(value)


def nearest(name: str, options: Iterable[str]) -> str:
    """Return a hint for a misspelled name: the closest option, or all options if none is close."""
    names = sorted(options)
    close = difflib.get_close_matches(name.replace("-", "_"), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(names)}" if names else "none are known here"


def sentence(text: str) -> str:
    """Return a text as the end of a sentence: add a period unless it ends with a question mark, as hints do."""
    return text if text.endswith(("?", ".", "!", "…")) else f"{text}."


class phase:
    """Context manager that marks exceptions with the phase of a rollout in which they were raised; the innermost phase applies.

    Example:
        >>> with phase("model"):
        ...     await client.respond(request)
    """

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and phase_of(error, "") == "":  # an inner phase knows the cause more exactly
            mark_phase(error, self.name)


class _PhaseNote(str):
    """Note of an exception (PEP 678, shown at the end of its traceback) that names a phase of a rollout."""

    phase: str


def mark_phase(error: BaseException, name: str) -> None:
    """Add a note to an exception that it was raised in the phase `name` of a rollout."""
    # A note, not a separate attribute, because tracebacks show notes.
    note = _PhaseNote(f"raised in the phase '{name}' of a rollout")
    note.phase = name
    error.add_note(note)


def phase_of(error: BaseException, default: str = "rollout") -> str:
    """Return the phase of a rollout in which an exception was raised (see `phase`); `default` if it is not marked."""
    notes = getattr(error, "__notes__", ())
    return next((note.phase for note in notes if isinstance(note, _PhaseNote)), default)


class UnansweredRequest(tuple[str, ...]):
    """Argument of a `CancelledError` raised during a model request: one line per failed attempt before the cancellation.

    asyncio compares exception types exactly to detect timeouts, so a subclass of `CancelledError` could not carry these
    attempts.
    """


def cancelled_unanswered(attempts: Iterable[str]) -> asyncio.CancelledError:
    """Return a `CancelledError` for a model request that was cancelled while it was unanswered."""
    return asyncio.CancelledError(UnansweredRequest(attempts))


def unanswered_attempts(error: BaseException | None) -> list[str] | None:
    """Return the failed attempts of a request that was cancelled while it was unanswered; None for any other error."""
    args = error.args if isinstance(error, asyncio.CancelledError) else ()
    return next((list(arg) for arg in args if isinstance(arg, UnansweredRequest)), None)


def ends_task(error: BaseException) -> bool:
    """Return whether an exception ends the task instead of counting as a failure of the rollout.

    True for KeyboardInterrupt, GeneratorExit and the cancellation of this task (but not of another task that it
    awaits). Anything else is a failure of the rollout, including SystemExit and panics of extension modules.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, (KeyboardInterrupt, GeneratorExit))


def end_reason(error: BaseException) -> str:
    """Return a description of the exception that ended a run."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by the user"
    if isinstance(error, asyncio.CancelledError):
        return "interrupted"
    return error_text(error)


def error_text(error: BaseException) -> str:
    """Return the message of an error of rove, or the type and the message of another error."""
    return str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"


def traceback_text(error: BaseException, limit: int = 8000) -> str:
    """Return the last `limit` characters of the traceback."""
    text = "".join(traceback.format_exception(error))
    if len(text) <= limit:
        return text
    return "…" + text[-limit:]  # the end names the error and the line that raised it


def short_repr(value: object) -> str:
    """Return a short representation for messages, even of values whose own `repr` fails, such as huge integers."""
    try:
        return reprlib.repr(value)
    except Exception:  # a user's class can raise anything in its `__repr__`
        return f"<{type(value).__name__}>"


def excerpt(value: object, limit: int = 200) -> str:
    """Return the first `limit` characters of a value on one line, as JSON unless it is a text, for an error message."""
    if value is None or isinstance(value, bool) or is_object(value) or is_list(value):
        value = as_json(value)
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    line = " ".join(text.split()) or "(nothing)"
    return line if len(line) <= limit else line[:limit] + "…"
