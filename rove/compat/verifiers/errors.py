"""v0's exceptions: rove's own classes under v0's names, so that either library's handlers catch them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rove.core.errors import (
    EmptyModelResponseError,
    Error,
    InfraError,
    InvalidModelResponseError,
    ModelError,
    OverlongPromptError,
    SandboxError,
    ToolCallError,
    ToolError,
    ToolParseError,
)
from rove.core.errors import MissingKeyError as _MissingKeyError

# fmt: off
__all__ = [
    "BrowserSandboxError", "EmptyModelResponseError", "Error", "InfraError", "InvalidModelResponseError", "ModelError",
    "OverlongPromptError", "SandboxError", "ToolCallError", "ToolError", "ToolParseError", "TunnelError",
]
# fmt: on


class TunnelError(InfraError):
    """A tunnel was closed."""


class BrowserSandboxError(SandboxError):
    """A sandbox with a browser failed."""


class MissingKeyError(_MissingKeyError):
    """Environment variables that an environment needs are not set; `keys` has their names."""

    def __init__(self, keys: Iterable[str]):
        self.keys = list(keys)
        names = ", ".join(self.keys)
        super().__init__(f"these environment variables are not set: {names}; set them, e.g. export {self.keys[0]}=…")


def ensure_keys(keys: Iterable[str]) -> None:
    """Check that environment variables are set.

    Raises:
        MissingKeyError: some variables are not set or are empty; the error names all of them.
    """
    missing = [key for key in keys if not os.environ.get(key)]
    if missing:
        raise MissingKeyError(missing)


def get_error_chain(error: BaseException | None, parent_type: type[BaseException] | None = None) -> list[BaseException]:
    """Return an error and its causes, up to the first cause that is not a `parent_type`."""
    chain: list[BaseException] = []
    while error is not None and (parent_type is None or isinstance(error, parent_type)):
        chain.append(error)
        error = error.__cause__
    return chain


def get_vf_error_chain(error: BaseException | None) -> list[BaseException]:
    """Return an error and its causes, up to the first cause that is not a `vf.Error`."""
    return get_error_chain(error, Error)


class ErrorChain:
    """An error with its causes: `str` shows the types, `repr` the errors."""

    def __init__(self, error: BaseException):
        self.root_error = error
        self.chain = get_error_chain(error)

    def __contains__(self, kind: object) -> bool:
        return isinstance(kind, type) and any(isinstance(error, kind) for error in self.chain)

    # Only the types count, as in v0: a Counter of chains counts kinds of failures, not messages.
    def __eq__(self, chain: object) -> bool:
        return isinstance(chain, ErrorChain) and str(self) == str(chain)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return " -> ".join(type(error).__name__ for error in self.chain)

    def __repr__(self) -> str:
        return " -> ".join(map(repr, self.chain))


def error_data(error: BaseException) -> dict[str, str]:
    """Return an error in the form used in outputs."""
    chain = ErrorChain(error)
    name = type(error).__name__
    return {
        "error": name,
        "message": str(error) or name,
        "error_chain_repr": repr(chain),
        "error_chain_str": str(chain),
    }
