"""Running the build backend that a package's pyproject.toml names, and packing anew what it made."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rove.core.errors import ConfigError, PackageError
from rove.hub.package.archives import Wheel, check_source, check_wheel, project_of, read_metadata
from rove.hub.package.dependencies import applies, parse_requirement
from rove.hub.package.manifest import File, filename, one_line
from rove.hub.package.packing import SECONDS, pack_source, pack_wheel, unpack_source, unpack_wheel
from rove.hub.package.unpacking import Members, zip_members

OUTPUT = "dist"
"""Where packages are put, in the environment's own folder."""
NOT_SOURCE = shutil.ignore_patterns(
    *("__pycache__", "*.pyc", "*.egg-info", ".git", ".hg", ".venv", "venv", ".*_cache", ".hypothesis", ".DS_Store"),
    *(".env", ".env.*", ".envrc", ".netrc", ".pypirc", "*.pem", "*.key", "id_rsa", "id_ed25519"),
)
"""What is no source wherever it lies; the second row holds keys."""
MADE = frozenset({OUTPUT, "build", "runs"})
"""Folders beside pyproject.toml that commands make."""
TOLD = 15
"""Last lines of a backend's words in an error."""
FIXED = {
    "SOURCE_DATE_EPOCH": str(SECONDS),
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
}
"""Environment variables that could show in what a backend makes."""


def build_archives(folder: Path, work: Path, output: Path) -> tuple[Wheel, Members, list[File]]:
    """Put a wheel and a source archive of a folder into another; what the wheel holds, its files, and how both are described.

    The backend sees a copy of the folder, then what its source archive holds: it leaves nothing behind, and what the archive
    misses is missed in the wheel.

    Args:
        work: an empty folder for what lies between.

    Raises:
        ConfigError: what is needed to build is not installed.
        PackageError: the backend fails, or what it made is no environment's package.
    """
    copy = work / "copy"
    copy_source(folder, copy)
    source = unpack_source(_run(copy, "sdist", work / "sdist").read_bytes())
    write_members(work / "source", {path.partition("/")[2]: content for path, content in source.items()})
    made = _run(work / "source", "wheel", work / "wheel")
    members = unpack_wheel(made.read_bytes())
    metadata = [content for path, content in members.items() if re.fullmatch(r"[^/]+\.dist-info/METADATA", path)]
    if len(metadata) != 1 or any(re.search(r"\.dist-info/RECORD\.", path) for path in members):
        raise PackageError(f"{made.name}: expected one METADATA and no signature in the wheel")
    name, version = project_of(read_metadata(metadata[0], made.name))
    if "py3-none-any" not in made.name:
        raise PackageError(f"{made.name} is not pure Python (py3-none-any); put what is compiled into a dependency")
    try:
        contents = {"wheel": pack_wheel(members, name, version), "source": pack_source(source, name, version)}
    except ValueError as error:
        raise PackageError(f"{folder}: a path is too long for a source archive: {error}") from None
    files = [_put(output / filename(name, version, kind), content, kind) for kind, content in contents.items()]
    wheel = check_wheel(output / files[0].filename)
    check_source(output / files[1].filename)
    with (output / files[0].filename).open("rb") as stream:
        return wheel, zip_members(stream, files[0].filename), files


def copy_source(folder: Path, copy: Path) -> None:
    """Copy what a package is made from: nothing that commands have made, that git ignores, or that holds keys.

    Raises:
        PackageError: a file cannot be read.
    """
    ignored = _ignored_by_git(folder)

    def left_out(path: str, names: list[str]) -> Iterable[str]:
        made = MADE & set(names) if Path(path) == folder else ()
        return {*NOT_SOURCE(path, names), *made, *(name for name in names if Path(path) / name in ignored)}

    try:
        shutil.copytree(folder, copy, ignore=left_out)
    except shutil.Error as error:
        raise PackageError(f"{folder} cannot be copied: {error.args[0][0][2]}") from None
    for path in copy.rglob("*"):  # what rights a file has is the umask's doing
        path.chmod(0o755 if path.is_dir() else 0o644)


def _ignored_by_git(folder: Path) -> set[Path]:
    """Files and folders that git ignores there; none where there is no git, or where it ignores the package itself."""
    command = ["git", "-C", str(folder), "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return set()
    names = [name.rstrip("/") for name in done.stdout.split("\0")] if done.returncode == 0 else []
    ignored = {folder / name for name in names if name not in ("", ".")}
    return set() if folder / "pyproject.toml" in ignored else ignored


def write_members(folder: Path, members: Members) -> None:
    """Unpack an archive that was checked, or made here."""
    for path, content in members.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _put(file: Path, content: bytes, kind: Any) -> File:
    file.write_bytes(content)
    return File(filename=file.name, kind=kind, sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def _run(folder: Path, kind: Literal["sdist", "wheel"], output: Path) -> Path:
    """Have the backend make one archive; in an environment of its own where what it requires is not installed here."""
    try:
        import build
        import build.env
    except ImportError as error:
        raise ConfigError(f"building needs {error.name}; install rove's hub extra: pip install 'rove[hub]'") from None
    try:
        builder = build.ProjectBuilder(folder, runner=_run_hook)
        if all(map(_is_installed, builder.build_system_requires)) and not builder.check_dependencies(kind):
            return Path(builder.build(kind, output))
        with build.env.DefaultIsolatedEnv() as alone:
            builder = build.ProjectBuilder.from_isolated_env(alone, folder, runner=_run_hook)
            alone.install(builder.build_system_requires)
            alone.install(builder.get_requires_for_build(kind))
            return Path(builder.build(kind, output))
    except (build.BuildException, build.BuildBackendException, build.FailedProcessError) as error:
        cause = getattr(error, "exception", error)
        said = getattr(cause, "stdout", b"") or b""
        lines = [f"\n  {line}" for line in said.decode("utf-8", "replace").strip().splitlines()[-TOLD:]]
        raise PackageError(f"the build backend could not make the {kind}: {error}{''.join(lines)}") from None


def _run_hook(cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
    """Run a backend with nothing around it that could show in what it makes."""
    env = {**os.environ, **FIXED, **(extra_environ or {})}
    subprocess.run(cmd, cwd=cwd, env=env, umask=0o022, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)


def _is_installed(text: str) -> bool:
    """Whether what a backend requires is installed here."""
    try:
        requirement = parse_requirement(text)
        if not applies(requirement):
            return True
    except ValueError as error:
        raise PackageError(f"[build-system] requires {one_line(text)!r}, which cannot be read: {error}") from None
    try:
        return requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False
