"""Libraries whose API lives on here: `verifiers` v0, under its own name after `install()`."""

from __future__ import annotations

from rove.compat.alias import install, offer, uninstall

__all__ = ["install", "offer", "uninstall"]
