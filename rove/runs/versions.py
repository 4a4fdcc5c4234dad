"""What software is here, as run folders tell it."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

PACKAGES = ("rove", "torch", "transformers", "tokenizers", "aiohttp", "msgspec")


def versions_here() -> dict[str, str]:
    """Name → version of Python, the platform and the packages that matter; those that are not installed are left out."""
    found = {"python": sys.version.split()[0], "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
