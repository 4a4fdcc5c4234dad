"""Run the build backend of a package and repack its archives reproducibly: the same files always give the same bytes."""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib.metadata
import io
import os
import re
import shutil
import struct
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from rove.core.errors import ConfigError, PackageError
from rove.hub.package.archives import Wheel, check_source, check_wheel, project_of, read_metadata, record_hash
from rove.hub.package.manifest import File, applies, filename, one_line, parse_requirement
from rove.hub.package.unpacking import Members, zip_members

ARCHIVE_DATE = (2020, 2, 2, 0, 0, 0)
SOURCE_DATE_EPOCH_S = 1_580_601_600
"""`ARCHIVE_DATE` in seconds since 1970."""
_GZIP = b"\x1f\x8b\x08\0" + struct.pack("<L", 0) + b"\2\xff"
"""Gzip header without date, file name or operating system."""


def pack_wheel(members: Members, name: str, version: str) -> bytes:
    """Pack a wheel from the files of another wheel; rename its `.dist-info` folder and rewrite RECORD."""
    info, old = f"{name.replace('-', '_')}-{version}.dist-info", dist_info(members)
    files: Members = {}
    for path, content in members.items():
        is_metadata = path.startswith(f"{old}/")
        files[path.replace(old, info, 1) if is_metadata else path] = content
    files.pop(f"{info}/RECORD", None)
    order = sorted(files, key=lambda path: (path.startswith(f"{info}/"), path))  # metadata last, as PEP 427 wants it
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for path in order:
        content = files[path]
        rows.writerow((path, record_hash(hashlib.sha256(content).hexdigest()), len(content)))
    rows.writerow((f"{info}/RECORD", "", ""))
    files[f"{info}/RECORD"] = record.getvalue().encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path in [*order, f"{info}/RECORD"]:
            entry = zipfile.ZipInfo(path, ARCHIVE_DATE)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16  # Unix, on every system that builds
            archive.writestr(entry, files[path], zipfile.ZIP_DEFLATED, 9)
    return stream.getvalue()


def dist_info(members: Members) -> str:
    """Return the `.dist-info` folder of a wheel."""
    return next(path.split("/")[0] for path in members if path.split("/")[0].endswith(".dist-info"))


def pack_source(members: Members, name: str, version: str) -> bytes:
    """Pack a source archive from files in one folder, which is renamed to NAME-VERSION."""
    folder = f"{name.replace('-', '_')}-{version}"
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT, encoding="utf-8") as archive:
        for path in sorted(members):
            entry = tarfile.TarInfo(f"{folder}/{path.partition('/')[2]}")
            entry.size, entry.mtime, entry.mode = len(members[path]), SOURCE_DATE_EPOCH_S, 0o644
            archive.addfile(entry, io.BytesIO(members[path]))
    content = stream.getvalue()
    # gzip.compress would write the operating system into the header.
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(content) + packer.flush()
    return _GZIP + packed + struct.pack("<LL", zlib.crc32(content), len(content) & 0xFFFFFFFF)


def unpack_wheel(content: bytes) -> Members:
    """Return the files of a wheel that a local build produced."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}


def unpack_source(content: bytes) -> Members:
    """Return the regular files of a source archive that a local build produced."""
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}  # pyright: ignore[reportOptionalMemberAccess]


OUTPUT = "dist"
"""Default output folder, inside the environment's folder."""
IGNORED_FILES = shutil.ignore_patterns(
    *("__pycache__", "*.pyc", "*.egg-info", ".git", ".hg", ".venv", "venv", ".*_cache", ".hypothesis", ".DS_Store"),
    *(".env", ".env.*", ".envrc", ".netrc", ".pypirc", "*.pem", "*.key", "id_rsa", "id_ed25519"),
)
"""Files that are never packaged; the files in the second row may contain secrets."""
GENERATED_FOLDERS = frozenset({OUTPUT, "build", "runs"})
"""Folders next to pyproject.toml that commands generate."""
MAX_OUTPUT_LINES = 15
"""Maximum lines of a backend's output in an error."""
BUILD_ENVIRONMENT = {
    "SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH_S),
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
}
"""Environment variables fixed during a build because they can affect the result."""


def build_archives(folder: Path, work: Path, output: Path) -> tuple[Wheel, Members, list[File]]:
    """Build the wheel and source archive of a folder.

    The backend builds the source archive from a copy of the folder, and the wheel from that archive. The folder stays
    unchanged, and a file missing from the source archive is also missing from the wheel.

    `work` is an empty folder for intermediate files; `output` is the folder for the two archives.

    Returns:
        The contents of the wheel, its files by path, and the manifest entries of both archives.
    """
    copy = work / "copy"
    copy_source(folder, copy)
    source = unpack_source(_run(copy, "sdist", work / "sdist").read_bytes())
    write_members(work / "source", {path.partition("/")[2]: content for path, content in source.items()})
    wheel_file = _run(work / "source", "wheel", work / "wheel")
    members = unpack_wheel(wheel_file.read_bytes())
    metadata = [content for path, content in members.items() if re.fullmatch(r"[^/]+\.dist-info/METADATA", path)]
    # `pack_wheel` rewrites RECORD, which would invalidate a signature of it (RECORD.jws).
    if len(metadata) != 1 or any(re.search(r"\.dist-info/RECORD\.", path) for path in members):
        raise PackageError(f"{wheel_file.name}: expected one METADATA and no signature in the wheel")
    name, version = project_of(read_metadata(metadata[0], wheel_file.name))
    if "py3-none-any" not in wheel_file.name:
        raise PackageError(f"{wheel_file.name} is not pure Python (py3-none-any); move compiled code into a dependency")
    try:
        contents: dict[Literal["wheel", "source"], bytes] = {
            "wheel": pack_wheel(members, name, version),
            "source": pack_source(source, name, version),
        }
    except ValueError as error:
        raise PackageError(f"{folder}: a path is too long for a source archive: {error}") from None
    files: list[File] = []
    for kind, content in contents.items():
        file, sha256 = output / filename(name, version, kind), hashlib.sha256(content).hexdigest()
        file.write_bytes(content)
        files.append(File(filename=file.name, kind=kind, sha256=sha256, size=len(content)))
    wheel = check_wheel(output / files[0].filename)
    check_source(output / files[1].filename)
    with (output / files[0].filename).open("rb") as stream:
        return wheel, zip_members(stream, files[0].filename), files


def copy_source(folder: Path, copy: Path) -> None:
    """Copy a package's sources, without generated files, files ignored by git, and files that may contain secrets."""
    ignored = _ignored_by_git(folder)

    def left_out(path: str, names: list[str]) -> Iterable[str]:
        generated = GENERATED_FOLDERS & set(names) if Path(path) == folder else ()
        return {*IGNORED_FILES(path, names), *generated, *(name for name in names if Path(path) / name in ignored)}

    try:
        shutil.copytree(folder, copy, ignore=left_out)
    except shutil.Error as error:
        raise PackageError(f"{folder} cannot be copied: {error.args[0][0][2]}") from None
    for path in copy.rglob("*"):  # file modes depend on the umask, which must not affect the result
        path.chmod(0o755 if path.is_dir() else 0o644)


def _ignored_by_git(folder: Path) -> set[Path]:
    """Return the paths in a folder that git ignores; an empty set without git, or if git ignores the package itself."""
    listed = git_output(folder, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    names = [name.rstrip("/") for name in listed.split("\0")]
    ignored = {folder / name for name in names if name not in ("", ".")}
    # A package that git ignores as a whole is built as it is; otherwise it would be empty.
    return set() if folder / "pyproject.toml" in ignored else ignored


def git_output(folder: Path, *words: str) -> str:
    """Return the output of git in a folder; "" if it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, encoding="utf-8", errors="replace", check=False
        )
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def write_members(folder: Path, members: Members) -> None:
    """Write the files of a trusted archive into a folder."""
    for path, content in members.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _run(folder: Path, kind: Literal["sdist", "wheel"], output: Path) -> Path:
    """Run the backend, in a new virtual environment if its requirements are not installed here."""
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
        text: bytes = getattr(cause, "stdout", b"") or b""
        lines = [f"\n  {line}" for line in text.decode("utf-8", "replace").strip().splitlines()[-MAX_OUTPUT_LINES:]]
        raise PackageError(f"the build backend could not make the {kind}: {error}{''.join(lines)}") from None


def _run_hook(cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
    """Run a backend in a fixed environment, so that its result does not depend on the machine."""
    env = {**os.environ, **BUILD_ENVIRONMENT, **(extra_environ or {})}
    subprocess.run(cmd, cwd=cwd, env=env, umask=0o022, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)


def _is_installed(text: str) -> bool:
    """Return whether a build requirement is installed."""
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
