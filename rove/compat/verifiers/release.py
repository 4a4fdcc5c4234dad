"""Determine the release of v0 to imitate: the one for which the calling package is written, as published or with fixes."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tomllib
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from rove.compat.alias import NAME, PROVIDED_VERSIONS
from rove.compat.source_reader import read
from rove.core.errors import ConfigError

VARIABLE = "ROVE_COMPAT"


def fixed() -> bool:
    """Return whether `ROVE_COMPAT=fixed` is set, which enables the fixes that `docs/compat.md` lists."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "v0", "fixed"):
        raise ConfigError(
            f"{VARIABLE} is {value!r}; expected 'fixed' (the fixes of docs/compat.md), or 'v0' or nothing"
        )
    return value == "fixed"


def set_legacy_attributes(owner: object, keywords: Mapping[str, Any]) -> None:
    """Set keywords of older releases as attributes, each with a warning."""
    if keywords and fixed():
        raise TypeError(f"{type(owner).__name__} has no argument {', '.join(keywords)}")
    for name, value in keywords.items():
        outdated(f"{type(owner).__name__}({name}=…)", "set the attribute instead")
        setattr(owner, name, value)


def outdated(form: str, instead: str) -> None:
    """Warn of a name or form of releases before 0.1.11 that still works."""
    # A FutureWarning, because Python hides a DeprecationWarning of an imported package by default.
    warnings.warn(f"{form} is from an older verifiers; {instead}", FutureWarning, stacklevel=3)


# The first of the provided versions, 0.0.0, is only for installers.
RELEASES = tuple(map(Version, PROVIDED_VERSIONS[NAME][1:]))
"""Releases whose API rove provides, oldest first."""
NEWEST = RELEASES[-1]
_IGNORED_MODULES = ("rove", NAME)
"""Top-level modules on the call stack that do not belong to the calling package."""


def written_for() -> Version:
    """Return the release for which the calling package is written.

    It is the newest release that the package's requirement on `verifiers` allows or, without a requirement, the newest
    of all. If the package's code runs only with an older generation of the API, it is a release of that generation: the
    oldest one that the requirement allows, because packages require the release with which they were written; the
    generation's newest one if the requirement begins before it, or allows none.

    The calling package is the first module on the call stack outside rove and the standard library. Its requirement
    comes from the installed distribution of the same name, else from a `pyproject.toml` in the folder of the module or
    its parent.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if name not in _IGNORED_MODULES and name not in sys.stdlib_module_names:
            file = frame.f_globals.get("__file__")
            return _release_of(name, str(file) if file else "")
        frame = frame.f_back
    return NEWEST


@lru_cache(maxsize=256)
def _release_of(module: str, file: str) -> Version:
    if not file:
        return NEWEST
    requirements = _distribution_requirements(module) or project_requirements(Path(file))
    allowed = allowed_releases(requirements)
    newest = allowed[-1]
    texts = _package_texts(module, Path(file))
    # Other callers, such as a test or a library that uses verifiers, may contain code for several releases.
    is_environment = module == "__main__" or _has_load_environment(texts, file)
    generation = recognized_releases(read(texts).features) if is_environment else None
    if generation is None or newest < generation.end:
        return newest
    release = release_within(generation, allowed)
    warnings.warn(
        f"{module} is written for verifiers {release} ({generation.reason}), although its requirement allows {newest}; "
        f"it gets the behavior of {release}. To choose another release, require it in the package's pyproject.toml: "
        "verifiers==…",
        FutureWarning,
        stacklevel=4,
    )
    return release


class Releases(NamedTuple):
    """A generation of the API, recognized by the code of a package."""

    start: Version
    end: Version
    """First release of the next generation."""
    reason: str
    """The features used by the package that later releases lack."""


def _has_load_environment(texts: Mapping[str, str], file: str) -> bool:
    """Return whether a file, or the `__init__` of its package, has a `load_environment`."""
    entry_points = {path: text for path, text in texts.items() if path in (file, Path(file).name)}
    for path in list(texts)[:1]:
        # The first file of a package is its `__init__`, which may import the function from another module.
        if Path(path).name == "__init__.py":
            entry_points[path] = texts[path]
    features = read(entry_points).features
    return "defines:load_environment" in features or "imports:load_environment" in features


def release_within(generation: Releases, allowed: Sequence[Version]) -> Version:
    """Return the release of a generation for which a package is written, given the releases that its requirement allows."""
    releases = [release for release in RELEASES if generation.start <= release < generation.end]
    oldest = allowed[0]
    # `verifiers>=0.1.2` is the release with which the package was written; a requirement without a lower bound does not show it.
    has_lower_bound = oldest > RELEASES[0]
    return oldest if has_lower_bound and oldest in releases else releases[-1]


_GENERATIONS = {
    ("0.1.0", "0.1.3"): (
        *("sync:is_completed", "pair:one message", "positional:rubric", "positional:environment"),
        *("name:DoubleCheckEnv", "name:MultiTurnCompletionEnv", "name:CodeMathEnv", "name:CodeMathRubric"),
        *("name:SmolaToolEnv", "name:SmolaToolRubric"),
    ),
    ("0.1.3", "0.1.8"): (
        *("async:is_completed", "pair:env_response", "scoring:score_rollout", "scoring:score_rollouts"),
        *("unnamed:update_tool_args", "module:verifiers.utils.tools", "name:ToolRubric"),
    ),
    ("0.1.8", "0.1.11"): ("keyword:oai_tools", "name:GRPOTrainer", "name:RLTrainer", "name:get_model_and_tokenizer"),
}
"""First releases of a generation and of the next → features (see `source_reader`) that the next generation refuses.

Features that newer packages may have for other reasons, such as their own key "turn" in the state, are not among them.
"""


def recognized_releases(features: Collection[str]) -> Releases | None:
    """Return the oldest generation whose API a package uses, given its features; None if 0.3.1 has everything that the
    package uses.
    """
    for (start, end), refused_features in _GENERATIONS.items():
        matching = [feature for feature in refused_features if feature in features]
        # Without a JudgeRubric, `judge` is some other function of the package.
        if start == "0.1.0" and "sync:judge" in features and "name:JudgeRubric" in features:
            matching.append("sync:judge")
        if start == "0.1.3":
            matching += [f"state:{key}" for key in ("turn", "responses") if _reads_only(features, key)]
        if matching:
            reason = f"it uses {', '.join(matching)}; see docs/compat.md"
            return Releases(Version(start), Version(end), reason)
    return None


def _reads_only(features: Collection[str], key: str) -> bool:
    """Return whether a package reads a key of the state that it never sets."""
    return f"reads:state.{key}" in features and f"sets:{key}" not in features


_MAX_FILES = 100
"""Maximum files of a package that are read to recognize its generation."""


def _package_texts(module: str, file: Path) -> dict[str, str]:
    """Return the texts of a package's Python files, or of a single module that is not in a package."""
    folder = next((parent for parent in file.parents if parent.name == module), None)
    # A single module is named without its folder, which is no part of its import path.
    paths = {file.name: file}
    if folder is not None and (folder / "__init__.py").is_file():
        files = [folder / "__init__.py", *sorted(folder.rglob("*.py"))[:_MAX_FILES]]
        paths = {str(path): path for path in files}
    texts: dict[str, str] = {}
    for name, path in paths.items():
        try:
            texts[name] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
    return texts


def allowed_releases(requirements: Iterable[str]) -> tuple[Version, ...]:
    """Return the releases that all requirements allow, oldest first; all releases if they allow none."""
    allowed = RELEASES
    for line in requirements:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.name.lower() == NAME:
            specifier = requirement.specifier
            allowed = tuple(release for release in allowed if specifier.contains(release, prereleases=True))
    return allowed or RELEASES


def newest_allowed(requirements: Iterable[str]) -> Version:
    """Return the newest release that all requirements allow; if they allow none, the newest of all."""
    return allowed_releases(requirements)[-1]


def _distribution_requirements(module: str) -> list[str]:
    try:
        return importlib.metadata.requires(module) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return []


def project_requirements(file: Path) -> list[str]:
    """Return the requirements in the `pyproject.toml` of a module's folder or its parent folder; none without one."""
    for folder in (file.parent, file.parent.parent):
        try:
            with (folder / "pyproject.toml").open("rb") as project:
                dependencies = tomllib.load(project).get("project", {}).get("dependencies", [])
        except (OSError, ValueError):
            continue
        return [line for line in dependencies if isinstance(line, str)]
    return []
