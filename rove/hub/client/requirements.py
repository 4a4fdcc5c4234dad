"""What a package needs to be installed beside rove: rove itself, and `verifiers`, are met by the rove that is here."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rove
from rove.compat import PROVIDED_VERSIONS
from rove.core.errors import ConfigError
from rove.hub.package.dependencies import applies, parse_requirement, parse_specifiers

VERIFIERS = "verifiers"
ANSWERED_FOR = {"rove": (rove.__version__,), **PROVIDED_VERSIONS}
"""What nothing is fetched for where a dependency asks for it, by name: the versions that the rove that is here stands for."""
BROUGHT_ALONG = {"datasets": "datasets>=3.0", "openai": "openai>=1.50"}
"""What came with the real `verifiers`, so that its packages import it without saying so."""


def needed(dependencies: Iterable[str], who: str) -> list[str]:
    """The dependencies that have to be installed: without rove and verifiers, those of rove's extras in place of `rove[…]`.

    Args:
        who: needs them.

    Raises:
        ConfigError: it needs another rove than this one, or a dependency cannot be read.
    """
    found: list[str] = []
    for text in dependencies:
        try:
            requirement = parse_requirement(text)
            is_needed = applies(requirement)
        except ValueError as error:
            raise ConfigError(f"{who} has the dependency {text[:200]!r}, which cannot be read: {error}") from None
        name = canonicalize_name(requirement.name)
        if not is_needed:
            continue
        if name == "rove":
            here = rove.__version__
            _check(requirement, [here], f"{who} needs {requirement}; here is rove {here}: upgrade rove")
            found += _of_extras(requirement.extras)
        elif name == VERIFIERS:
            known = PROVIDED_VERSIONS[VERIFIERS]
            words = f"{who} needs {requirement}; rove stands for the API that verifiers had until {known[-1]}"
            _check(requirement, known, words)
        else:
            found.append(text)
    return found


def brought_along(wheel: Path) -> list[str]:
    """Requirements of a package of v0 that it does not declare: it imports what the real `verifiers` has brought with it."""
    with zipfile.ZipFile(wheel) as archive:
        code = "\n".join(
            archive.read(name).decode(errors="replace") for name in archive.namelist() if name.endswith(".py")
        )
    return [
        text for name, text in BROUGHT_ALONG.items() if re.search(rf"^\s*(from|import) {name}\b", code, re.MULTILINE)
    ]


def check_python(requires: str, who: str) -> None:
    """See that a package runs on this Python.

    Raises:
        ConfigError: it does not, or `requires` cannot be read.
    """
    here = ".".join(map(str, sys.version_info[:3]))
    try:
        is_met = parse_specifiers(requires).contains(here, prereleases=True)
    except ValueError as error:
        raise ConfigError(f"{who} needs Python {requires[:200]!r}, which cannot be read: {error}") from None
    if not is_met:
        raise ConfigError(f"{who} needs Python {requires}; this is {here}")


def _check(requirement: Requirement, versions: Iterable[str], words: str) -> None:
    if not any(requirement.specifier.contains(version, prereleases=True) for version in versions):
        raise ConfigError(words)


def _of_extras(extras: Iterable[str]) -> list[str]:
    try:
        declared = [Requirement(text) for text in metadata.requires("rove") or []]
    except metadata.PackageNotFoundError:
        return []
    found = []
    for one in declared:
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            continue
        if any(one.marker.evaluate({"extra": extra}) for extra in extras):
            one.marker = None
            found += _of_extras(one.extras) if canonicalize_name(one.name) == "rove" else [str(one)]
    return found
