"""Find the packages to check (folders, wheels, source distributions, modules, names) and read their files without importing."""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from rove.core.errors import ConfigError
from rove.envs.loading import environment_file
from rove.remote.venv import run_pip

PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
SDISTS = (".tar.gz", ".tgz", ".zip")
UNBUILT_FILES = (".*", "__pycache__", "build", "dist", "node_modules", "outputs", "runs", "venv", "*.egg-info")
"""Files that are not copied when a project is built."""
SKIPPED_FOLDERS = {"tests", "test", "docs", "build", "dist", "node_modules", "venv", "__pycache__"}
"""Folders of a project that do not belong to the package."""
MAX_FILE_BYTES, MAX_FILES = 1_000_000, 2_000
"""Limits of what is read: bytes per file, and number of files."""


class Package(msgspec.Struct, frozen=True):
    """One environment package."""

    name: str
    kind: Literal["project", "wheel", "sdist", "module"]
    """A module is loaded in place, with the packages of this interpreter; all other kinds are installed."""
    path: Path
    env_dir: Path | None = None
    """Folder that contains the module; None if the module is installed."""


def packages_in(given: str, env_dir: str | None = None) -> list[Package]:
    """Return the packages that a command-line argument names: one package, or all packages in a folder.

    Args:
        env_dir: Folder that is searched first if `given` is a name.
    """
    path = Path(given)
    if not path.exists() or (env_dir is not None and path.name == given):
        return [_package_named(given, env_dir)]
    one = _package_at(path.resolve())
    if one is not None:
        return [one]
    found = [_package_at(child) for child in sorted(path.resolve().iterdir())] if path.is_dir() else []
    packages = [package for package in found if package is not None and _may_be_one(package)]
    if not packages:
        raise ConfigError(
            f"{given} is not an environment package and contains none; expected a folder with a pyproject.toml or a module "
            "that has load_environment(), a wheel, a source distribution, or a folder of those"
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


def _may_be_one(package: Package) -> bool:
    """Return whether a file in a folder of packages is an environment rather than a helper module."""
    return package.path.suffix != ".py" or "load_environment" in package.path.read_text(
        encoding="utf-8", errors="replace"
    )


def texts_of(package: Package) -> dict[str, str]:
    """Return the text of the package's Python files by path, without tests."""
    path = package.path
    try:
        if path.is_dir():
            files = (file for file in sorted(path.rglob("*.py")) if file.stat().st_size <= MAX_FILE_BYTES)
            named = ((file.relative_to(path).as_posix(), file) for file in files)
            return {name: file.read_text("utf-8", "replace") for name, file in _source_files(named)}
        if path.suffix == ".py":
            return {path.name: path.read_text("utf-8", "replace")}
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                infos = ((info.filename, info) for info in archive.infolist() if info.file_size <= MAX_FILE_BYTES)
                return {name: archive.read(info).decode("utf-8", "replace") for name, info in _source_files(infos)}
        with tarfile.open(path) as archive:
            members = ((m.name.partition("/")[2], m) for m in archive if m.isfile() and m.size <= MAX_FILE_BYTES)
            opened = ((name, archive.extractfile(member)) for name, member in _source_files(members))
            return {name: file.read().decode("utf-8", "replace") for name, file in opened if file is not None}
    except (OSError, zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _source_files(named: Iterable[tuple[str, object]]) -> list:
    kept = [
        (name, what)
        for name, what in named
        if name.endswith(".py")
        and not any(part in SKIPPED_FOLDERS or part.startswith(".") for part in name.split("/")[:-1])
    ]
    return kept[:MAX_FILES]


def as_wheel(package: Package, folder: Path, seconds: float) -> Package:
    """Return the wheel to install: the package itself, or a wheel built in `folder` from a copy of the package."""
    if package.kind == "wheel":
        return package
    path = package.path
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
        if re.search(r"\bload_environment\b", text) and (len(parts) == 1 or parts[1:] == ("__init__",)):
            names.append(parts[0])
    wanted = package.path.name.split("-")[0] if package.kind == "wheel" else package.name.replace("-", "_")
    if not names:
        raise ConfigError("none of its modules defines load_environment(); an environment package must define it")
    return wanted if wanted in names else sorted(names)[0]
