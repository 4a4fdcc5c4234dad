"""What a package requires of the environment it is installed into, and what it would replace there."""

from __future__ import annotations

import importlib.util
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
from rove.hub.package.archives import has_load_environment
from rove.hub.package.manifest import applies, parse_requirement, parse_specifiers

VERIFIERS = "verifiers"
PROVIDED = {"rove": (rove.__version__,), **PROVIDED_VERSIONS}
"""Dependencies that the installed rove provides → the versions it provides; they are not downloaded."""
V0_REQUIREMENTS = {"datasets": "datasets>=3.0", "openai": "openai>=1.50"}
"""Dependencies of the real `verifiers`, which v0 packages import without declaring them."""


def required_packages(dependencies: Iterable[str], subject: str) -> list[str]:
    """Return the dependencies to install: without rove and verifiers, and with the dependencies of requested rove extras.

    `subject` names the package in errors.

    Raises:
        ConfigError: It requires another version of rove, or a dependency is malformed.
    """
    found: list[str] = []
    for text in dependencies:
        try:
            requirement = parse_requirement(text)
            is_needed = applies(requirement)
        except ValueError as error:
            raise ConfigError(f"{subject} has the dependency {text[:200]!r}, which cannot be read: {error}") from None
        name = canonicalize_name(requirement.name)
        if not is_needed:
            continue
        if name == "rove":
            here = rove.__version__
            _check(requirement, [here], f"{subject} requires {requirement}, but rove {here} is installed; upgrade rove")
            found += _requirements_of_extras(requirement.extras)
        elif name == VERIFIERS:
            known = PROVIDED_VERSIONS[VERIFIERS]
            message = f"{subject} requires {requirement}; rove provides the API of verifiers up to {known[-1]}"
            _check(requirement, known, message)
        else:
            found.append(text)
    return found


def undeclared_v0_requirements(wheel: Path) -> list[str]:
    """Return the dependencies of the real `verifiers` that a v0 package imports without declaring them."""
    with zipfile.ZipFile(wheel) as archive:
        code = "\n".join(
            archive.read(name).decode(errors="replace") for name in archive.namelist() if name.endswith(".py")
        )
    return [
        text for name, text in V0_REQUIREMENTS.items() if re.search(rf"^\s*(from|import) {name}\b", code, re.MULTILINE)
    ]


def check_python(requires: str, subject: str) -> None:
    """Check that a package supports this Python.

    Raises:
        ConfigError: It does not, or `requires` is malformed.
    """
    here = ".".join(map(str, sys.version_info[:3]))
    try:
        is_met = parse_specifiers(requires).contains(here, prereleases=True)
    except ValueError as error:
        raise ConfigError(f"{subject} requires Python {requires[:200]!r}, which cannot be parsed: {error}") from None
    if not is_met:
        raise ConfigError(f"{subject} requires Python {requires}, but this is Python {here}")


def _check(requirement: Requirement, versions: Iterable[str], message: str) -> None:
    if not any(requirement.specifier.contains(version, prereleases=True) for version in versions):
        raise ConfigError(message)


def _requirements_of_extras(extras: Iterable[str]) -> list[str]:
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
            found += _requirements_of_extras(one.extras) if canonicalize_name(one.name) == "rove" else [str(one)]
    return found


HINT = "install it without --into-current, into a virtual environment of its own"


def check_no_conflict(name: str, module: str) -> None:
    """Check that a package replaces no distribution and hides no module of this interpreter, unless it is an environment.

    pip uninstalls a distribution of the same name first, even if it contains other modules.

    Args:
        name: Normalized name of the package.
        module: Its only top-level module.

    Raises:
        ConfigError: The module belongs to another distribution, the name to one with other modules, or a module of this name
            that is not an environment can be imported.
    """
    owners = metadata.packages_distributions()
    others = sorted({owner for owner in owners.get(module, []) if canonicalize_name(owner) != name})
    if others:
        raise ConfigError(f"the module '{module}' is already installed by {', '.join(others)}; {HINT}")
    modules = {top for top, names in owners.items() if name in [str(canonicalize_name(owner)) for owner in names]}
    replaced = sorted(top for top in modules - {module} if top.isidentifier() and not top.startswith("__editable__"))
    if replaced:
        raise ConfigError(f"it would replace '{name}', which is installed and contains {', '.join(replaced)}; {HINT}")
    file = _importable(module)
    if file is not None and not _is_environment(file):
        raise ConfigError(f"it would replace or hide the module {file}, which is not an environment; {HINT}")


def _importable(module: str) -> Path | None:
    """Return the file that `import module` would run, or None."""
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # a module that is running and has no spec
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def _is_environment(file: Path) -> bool:
    try:
        return has_load_environment(file.read_bytes())
    except (OSError, ValueError):
        return False
