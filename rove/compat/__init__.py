"""Libraries whose API lives on here: `verifiers` v0, under its own name after `install()`."""

from __future__ import annotations

from rove.compat.alias import NAME, STAND_INS, in_workers, install, lacking, offer, replace, uninstall

EVAL_DEFAULTS = ("num_examples", "rollouts_per_example")
"""What a package's `[tool.verifiers.eval]` says that `rove eval` goes by."""

__all__ = ["EVAL_DEFAULTS", "NAME", "STAND_INS", "in_workers", "install", "lacking", "offer", "replace", "uninstall"]
