"""Find the packages to check (folders, wheels, source distributions, modules, names) and read their files without importing."""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from rove.core.errors import ConfigError
from rove.envs.loading import environment_file
from rove.remote.venv import run_pip
from rove.utils.files import UNREADABLE_ARCHIVE

PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
SDISTS = (".tar.gz", ".tgz", ".zip")
UNBUILT_FILES = (".*", "__pycache__", "build", "dist", "node_modules", "outputs", "runs", "venv", "*.egg-info")
"""Files that are not copied when a project is built."""
SKIPPED_FOLDERS = {"tests", "test", "docs", "build", "dist", "node_modules", "venv", "__pycache__"}
"""Folders of a project that do not belong to the package."""
MAX_FILE_BYTES, MAX_FILES = 1_000_000, 2_000
"""Limits for reading a package: maximum bytes per file, and maximum number of files."""


class Package(msgspec.Struct, frozen=True):
    """One environment package."""

    name: str
    kind: Literal["project", "wheel", "sdist", "module"]
    """A module is loaded in place, with the packages of this interpreter; all other kinds are installed."""
    path: Path
    env_dir: Path | None = None
    """Folder that contains the module; None if the module is installed."""


def packages_in(argument: str, env_dir: str | None = None) -> list[Package]:
    """Return the packages that a command-line argument names: one package, or all packages in a folder.

    Args:
        env_dir: Folder that is searched first if the argument is a name.
    """
    path = Path(argument)
    # With --env-dir, `tictactoe` means the environment of that name, even if a folder here has the same name.
    is_name = env_dir is not None and path.name == argument
    if is_name or not path.exists():
        return [_package_named(argument, env_dir)]
    package = _package_at(path.resolve())
    if package is not None:
        return [package]
    packages: list[Package] = []
    for child in sorted(path.resolve().iterdir()) if path.is_dir() else ():
        package = _package_at(child)
        if package is not None and _may_be_environment(package):
            packages.append(package)
    if not packages:
        raise ConfigError(
            f"{argument} is not an environment package and contains none; expected a folder with a pyproject.toml or a "
            "module that has load_environment(), a wheel, a source distribution, or a folder of those"
        )
    return packages


def _package_named(name: str, env_dir: str | None) -> Package:
    try:
        file = environment_file(name, env_dir)
    except ConfigError as error:
        raise ConfigError(f"no such file: {name}; {error}") from error
    home = file.parent if file.name == "__init__.py" else file
    for folder in dict.fromkeys((file.parent, home.parent)):
        if (folder / "pyproject.toml").is_file():
            return Package(name, "project", folder)
    return Package(home.stem, "module", home, None if env_dir is None else Path(env_dir))


def _package_at(path: Path) -> Package | None:
    if path.name.startswith((".", "__")):
        return None
    if path.is_dir():
        if any((path / name).is_file() for name in PROJECT_FILES):
            return Package(path.name, "project", path)
        if (path / f"{path.name}.py").is_file() or (path / "__init__.py").is_file():
            return Package(path.name, "module", path, path.parent)
        return None
    if path.suffix == ".whl":
        return Package(path.name.split("-")[0], "wheel", path)
    if path.name.endswith(SDISTS):
        return Package(re.split(r"-\d", path.name)[0], "sdist", path)
    return Package(path.stem, "module", path, path.parent) if path.suffix == ".py" else None


def _may_be_environment(package: Package) -> bool:
    """Return whether a file in a folder of packages is an environment rather than a helper module."""
    if package.path.suffix != ".py":
        return True
    return "load_environment" in package.path.read_text(encoding="utf-8", errors="replace")


def texts_of(package: Package) -> dict[str, str]:
    """Return the text of the package's Python files by path, without tests."""
    path = package.path
    try:
        if path.is_dir():
            files = [(file.relative_to(path).as_posix(), file) for file in sorted(path.rglob("*.py"))]
            return _read_sources(files, lambda file: file.stat().st_size, lambda file: file.read_bytes())
        if path.suffix == ".py":
            return {path.name: path.read_text("utf-8", "replace")}
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                infos = [(info.filename, info) for info in archive.infolist()]
                return _read_sources(infos, lambda info: info.file_size, archive.read)
        with tarfile.open(path) as archive:
            # Everything is in one folder, such as my_env-0.1.0/. A link is left out: it may lead out of the archive.
            members = [(member.name.partition("/")[2], member) for member in archive if member.isfile()]
            return _read_sources(members, lambda member: member.size, lambda member: _member_bytes(archive, member))
    except UNREADABLE_ARCHIVE as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _read_sources(
    files: Iterable[tuple[str, Any]], size_of: Callable[[Any], int], read: Callable[[Any], bytes]
) -> dict[str, str]:
    """Return the text of Python files by name, without tests and without files over the limits.

    A package is untrusted: an archive may hold a file that expands to gigabytes.
    """
    texts: dict[str, str] = {}
    for name, file in files:
        if _is_source(name) and size_of(file) <= MAX_FILE_BYTES:
            texts[name] = read(file).decode("utf-8", "replace")
        if len(texts) == MAX_FILES:
            break
    return texts


def _is_source(name: str) -> bool:
    *folders, file = name.split("/")
    if any(folder in SKIPPED_FOLDERS or folder.startswith(".") for folder in folders):
        return False
    return file.endswith(".py")


def _member_bytes(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return b"" if file is None else file.read()


def as_wheel(package: Package, folder: Path, seconds: float) -> Package:
    """Return the wheel to install: the package itself, or a wheel built in `folder` from a copy of the package."""
    if package.kind == "wheel":
        return package
    path = package.path
    # Builds write into the project's folder, for example build/ and *.egg-info.
    if package.kind == "project":
        path = folder / "copy" / package.path.name
        shutil.copytree(
            package.path, path, ignore=shutil.ignore_patterns(*UNBUILT_FILES), ignore_dangling_symlinks=True
        )
    built = folder / "wheel"
    run_pip(sys.executable, ["wheel", "--no-deps", "--wheel-dir", str(built), str(path)], "it cannot be built", seconds)
    wheels = sorted(built.glob("*.whl"))
    if not wheels:
        raise ConfigError("it cannot be built: the build produced no wheel")
    return Package(package.name, "wheel", wheels[0])


def module_of(package: Package, texts: Mapping[str, str]) -> str:
    """Return the module that defines `load_environment`, preferring the module named like the package."""
    if package.kind == "module":
        return package.name
    names: list[str] = []
    for path, text in texts.items():
        parts = PurePosixPath(path).with_suffix("").parts
        is_top_level = len(parts) == 1 or parts[1:] == ("__init__",)
        if is_top_level and re.search(r"\bload_environment\b", text):
            names.append(parts[0])
    if not names:
        raise ConfigError("none of its modules defines load_environment(); an environment package must define it")
    # The file name of a wheel has the normalized name of the project.
    own_name = package.name.replace("-", "_")
    if package.kind == "wheel":
        own_name = package.path.name.split("-")[0]
    return own_name if own_name in names else min(names)
