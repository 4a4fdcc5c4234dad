"""Libraries whose API lives on here: `verifiers` v0, under its own name after `install()`."""

from __future__ import annotations

from rove.compat.alias import (
    NAME,
    PROVIDED_VERSIONS,
    in_workers,
    install,
    install_fallback,
    install_replacement,
    missing_reason,
    uninstall,
)

EVAL_DEFAULTS = ("num_examples", "rollouts_per_example")
"""What a package's `[tool.verifiers.eval]` says that `rove eval` goes by."""

__all__ = [
    "EVAL_DEFAULTS",
    "NAME",
    "PROVIDED_VERSIONS",
    "in_workers",
    "install",
    "install_fallback",
    "install_replacement",
    "missing_reason",
    "uninstall",
]
