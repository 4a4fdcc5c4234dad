"""Check which files a wheel installs and which entry points it declares, without running any of it.

A wheel may install exactly one top-level module, named like its package, and plain data files. Python runs some files
when it starts (`*.pth`, `sitecustomize.py`, `_distutils_hack`) and other tools run the entry points of their own groups,
so everything else is refused.
"""

from __future__ import annotations

import ast
import configparser
import re
import warnings

from rove.core.errors import ConfigError, PackageError
from rove.envs.loading import GROUP
from rove.hub.package import limits
from rove.hub.package.names import check_module, module_of, normalise_name
from rove.hub.package.unpacking import Members

LOAD = "load_environment"

_COMPILED = re.compile(r"\.(so|pyd|dll|dylib|pyc|pyo)(\.[0-9]+)*\Z", re.IGNORECASE)
"""Suffixes of compiled code, with the version that a shared library may have after them."""
_STARTUP = (".pth", ".start", ".egg-link")
"""Suffixes of files that Python or setuptools read when Python starts."""
_DATA = re.compile(
    r"[a-z0-9][a-z0-9._-]*\.(toml|md|rst|txt|json|jsonl|csv|ya?ml)|(license|licence|copying|notice|authors|readme|changelog)",
    re.IGNORECASE,
)
"""Names of data files allowed next to the module. Packages for verifiers v0 install their pyproject.toml there."""
_METADATA = re.compile(
    r"METADATA|WHEEL|RECORD|entry_points\.txt|top_level\.txt|zip-safe|scm_[a-z_]+\.json|(licenses|license_files|sboms)/.+|"
    r"(?i:(licen[cs]e|copying|notice|authors|contributors)[^/]*)"
)
"""Files of a `.dist-info` folder. Others change what installers and importlib.metadata report."""
_SECTION = re.compile(r"\[([^\[\]]*)\]")
_ENTRY = re.compile(r"([A-Za-z0-9._-]+)[ \t]*=[ \t]*([A-Za-z0-9_.:]+)")


def check_contents(members: Members, info: str, project: str, name: str) -> str:
    """Check the files and entry points of a wheel, and return the name of its module.

    Args:
        members: Files of the wheel by path.
        info: Name of the wheel's `.dist-info` folder.
        project: Normalized name of the package.
        name: File name of the wheel, for errors.

    Raises:
        PackageError: The wheel installs anything besides one module named like the package, data files and its metadata,
            declares entry points that are not its own, or the module has no `load_environment`.
    """
    for path in members:
        if _COMPILED.search(path):
            raise PackageError(f"{name}: {path} is compiled code, which cannot be reviewed; move it into a dependency")
        if path.startswith(f"{info}/") and not _METADATA.fullmatch(path.removeprefix(f"{info}/")):
            raise PackageError(f"{name}: {path} is not part of a wheel's metadata; remove it")
    module = _check_top(members, info, project, name)
    declared = within_limit(members.get(f"{info}/top_level.txt", b""), name, "top_level.txt").decode("utf-8", "replace")
    if declared.split() not in ([], [module]):
        raise PackageError(f"{name}: its top_level.txt lists {declared[:80]!r}; its only module is {module}")
    points = members.get(f"{info}/entry_points.txt", b"")
    _check_entry_points(within_limit(points, name, "entry_points.txt"), project, module, name)
    return module


def has_load_environment(source: bytes) -> bool:
    """Return whether a module defines, imports or assigns `load_environment` at its top level, without running it.

    Raises:
        ValueError: The source cannot be parsed.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
        return any(_binds(node) for node in tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def within_limit(content: bytes, name: str, what: str) -> bytes:
    """Return a metadata file's content.

    Raises:
        PackageError: The file is larger than `limits.MAX_METADATA_BYTES`.
    """
    if len(content) > limits.MAX_METADATA_BYTES:
        raise PackageError(
            f"{name}: its {what} has {len(content):,} bytes; expected at most {limits.MAX_METADATA_BYTES:,}"
        )
    return content


def _check_top(members: Members, info: str, project: str, name: str) -> str:
    """Check the top level of the wheel, except its metadata, and return the name of its only module."""
    found = []
    for top in sorted({path.split("/")[0] for path in members} - {info}):
        is_folder = top not in members
        if is_folder or top.endswith(".py"):
            _check_name(top, is_folder, project, name)
            found.append(top)
        elif top.lower().endswith(_STARTUP):
            raise PackageError(f"{name}: {top} would run whenever Python starts; remove it")
        elif not _DATA.fullmatch(top):
            raise PackageError(f"{name}: {top} is not allowed next to the module; move it into {module_of(project)}/")
    if len(found) > 1:
        raise PackageError(f"{name}: {' and '.join(found)} are both top-level modules; keep one of them")
    if not found:
        raise PackageError(f"{name}: it has no module; expected {module_of(project)} with a {LOAD}()")
    [top] = found
    file = top if top in members else f"{top}/__init__.py"
    if not _loads(members.get(file, b""), file, name):
        raise PackageError(f"{name}: expected a module with a {LOAD}(); {file} has none")
    return top if top not in members else top.removesuffix(".py")


def _check_name(top: str, is_folder: bool, project: str, name: str) -> None:
    """Check that a module at the top is named like the package and hides no other module."""
    if is_folder and top.lower().endswith(".data"):
        raise PackageError(f"{name}: {top}/ would write outside of the modules; keep data files in the package itself")
    module = top if is_folder else top.removesuffix(".py")
    try:
        check_module(module)
    except ConfigError as error:
        raise PackageError(f"{name}: {error}") from None
    if re.sub(r"_+", "-", module).lower() != project:
        raise PackageError(
            f"{name}: the module '{module}' is not named like the package '{project}'; expected one top-level module, "
            f"{module_of(project)}: move {top} into the folder {module_of(project)}/, or rename the package"
        )


def _check_entry_points(content: bytes, project: str, module: str, name: str) -> None:
    """Check that all entry points are environments of the package itself.

    importlib.metadata reads this file with a parser of its own: indented lines, other delimiters and unusual line ends mean
    something else to it than to `configparser`. Only lines that every parser reads in the same way are accepted.
    """
    where = f"{name}: its entry_points.txt"
    try:
        text = content.decode("ascii")
        for line in text.split("\n"):
            line = line.removesuffix("\r")
            if line.strip(" \t") and not _SECTION.fullmatch(line) and not _ENTRY.fullmatch(line):
                raise PackageError(f"{where} has the line {line[:80]!r}; expected [{GROUP}] or NAME = MODULE")
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=True, default_section="\0")
        parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] # names keep their case
        parser.read_string(text)
    except (configparser.Error, UnicodeError) as error:
        raise PackageError(f"{where} cannot be read: {str(error)[:200]}") from None
    for group in parser.sections():
        if group != GROUP:
            raise PackageError(f"{where} declares the group [{group[:80]}]; an environment may declare only [{GROUP}]")
        for point, value in parser.items(group):
            _check_entry_point(point, value, project, module, where)


def _check_entry_point(point: str, value: str, project: str, module: str, where: str) -> None:
    try:
        is_own = normalise_name(point) == project
    except ConfigError:
        is_own = False
    if not is_own:
        raise PackageError(f"{where} declares the environment '{point[:80]}'; expected the package's name, '{project}'")
    if value not in (module, f"{module}:{LOAD}"):
        raise PackageError(f"{where} names {value[:80]!r}; the module with a {LOAD}() is {module}")


def _binds(node: ast.stmt) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == LOAD
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return any((alias.asname or alias.name) == LOAD for alias in node.names)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(target, ast.Name) and target.id == LOAD for target in targets)
    if isinstance(node, (ast.If, ast.Try)):
        inside = [*node.body, *node.orelse, *(handled for h in getattr(node, "handlers", []) for handled in h.body)]
        return any(_binds(each) for each in inside)
    return False


def _loads(source: bytes, file: str, name: str) -> bool:
    if len(source) > limits.MAX_SOURCE_BYTES:
        raise PackageError(f"{name}: {file} has {len(source):,} bytes; expected at most {limits.MAX_SOURCE_BYTES:,}")
    try:
        return has_load_environment(source)
    except ValueError as error:
        raise PackageError(f"{name}: {file} cannot be parsed as Python: {error}") from None
