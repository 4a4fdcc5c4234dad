"""Libraries whose API lives on here: `verifiers` v0, under its own name after `install()`."""

from __future__ import annotations

from rove.compat.alias import NAME, in_workers, install, offer, replace, uninstall

EVAL_DEFAULTS = ("num_examples", "rollouts_per_example")
"""What a package's `[tool.verifiers.eval]` says that `rove eval` goes by."""

STAND_INS = {
    NAME: (
        *("0.0.0", "0.1.0", "0.1.1", "0.1.2", "0.1.2.post0", "0.1.2.post1", "0.1.3", "0.1.3.post0", "0.1.4", "0.1.5"),
        *("0.1.5.post0", "0.1.6", "0.1.6.post0", "0.1.7", "0.1.7.post0", "0.1.8", "0.1.8.post0", "0.1.8.post1"),
        *("0.1.8.post2", "0.1.9", "0.1.9.post0", "0.1.9.post1", "0.1.9.post2", "0.1.9.post3", "0.1.10", "0.1.11"),
        *("0.1.12", "0.1.14", "0.2.0", "0.2.1", "0.3.0", "0.3.1"),
    )
}
"""What nothing is fetched for where a package is installed for rove: the versions that had the API which lives on here."""

__all__ = ["EVAL_DEFAULTS", "NAME", "STAND_INS", "in_workers", "install", "offer", "replace", "uninstall"]
