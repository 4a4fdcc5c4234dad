"""APIs of other libraries: verifiers v0, importable as `verifiers` after `install()`."""

from __future__ import annotations

from rove.compat.alias import (
    NAME,
    PROVIDED_VERSIONS,
    install,
    install_fallback,
    install_replacement,
    missing_reason,
    uninstall,
)

EVAL_DEFAULTS = ("num_examples", "rollouts_per_example")
"""Keys of a package's `[tool.verifiers.eval]` that `rove eval` uses as defaults."""

__all__ = [
    "EVAL_DEFAULTS",
    "NAME",
    "PROVIDED_VERSIONS",
    "install",
    "install_fallback",
    "install_replacement",
    "missing_reason",
    "uninstall",
]
