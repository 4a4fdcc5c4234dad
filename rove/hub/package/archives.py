"""Check untrusted wheels and source archives without running their code.

`unpacking` checks the archive format; `check_wheel` and `check_source` check the contents; `check_package` checks that a manifest
describes both archives correctly. Every violation raises `PackageError` with the file name and the reason.
"""

from __future__ import annotations

import ast
import base64
import binascii
import configparser
import csv
import hashlib
import io
import re
import tempfile
import warnings
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from email.utils import getaddresses
from pathlib import Path

from packaging.metadata import Metadata, parse_email

from rove.audit.card import CARD_FILE, Card, read_card
from rove.core.errors import ConfigError, PackageError
from rove.core.plain import UNPARSABLE
from rove.envs.loading import ENTRY_POINT_GROUP
from rove.hub.package import limits
from rove.hub.package.manifest import Manifest, check_requirements, filename, read_manifest
from rove.hub.package.names import check_module, module_of, normalize_name, normalize_version
from rove.hub.package.signing import check_signature
from rove.hub.package.unpacking import Members, tar_members, zip_members

LOAD = "load_environment"
MAX_CARD_BYTES = 500_000
"""Maximum size of an environment's card."""

_COMPILED = re.compile(r"\.(so|pyd|dll|dylib|pyc|pyo)(\.[0-9]+)*\Z", re.IGNORECASE)
"""Pattern of the suffixes of compiled code; a shared library's version may follow."""
_STARTUP = (".pth", ".start", ".egg-link")
"""Suffixes of files that Python or setuptools reads when Python starts."""
_DATA = re.compile(
    r"[a-z0-9][a-z0-9._-]*\.(toml|md|rst|txt|json|jsonl|csv|ya?ml)|(license|licence|copying|notice|authors|readme|changelog)",
    re.IGNORECASE,
)
"""Pattern of the names of data files that are allowed next to the module. Packages for verifiers v0 install their
pyproject.toml there."""
_METADATA = re.compile(
    r"METADATA|WHEEL|RECORD|entry_points\.txt|top_level\.txt|zip-safe|scm_[a-z_]+\.json|(licenses|license_files|sboms)/.+|"
    r"(?i:(licen[cs]e|copying|notice|authors|contributors)[^/]*)"
)
"""Pattern of the files that are allowed in a `.dist-info` folder. Other files change what installers and importlib.metadata
report."""
_SECTION = re.compile(r"\[([^\[\]]*)\]")
_ENTRY = re.compile(r"([A-Za-z0-9._-]+)[ \t]*=[ \t]*([A-Za-z0-9_.:]+)")


def check_contents(members: Members, info: str, project: str, name: str) -> str:
    """Check the files and entry points of a wheel, and return the name of its module.

    A wheel may install exactly one top-level module, named like its package, and plain data files. Python runs some files when
    it starts (`*.pth`, `sitecustomize.py`, `_distutils_hack`) and other tools run the entry points of their own groups, so
    everything else is refused.

    `info` is the wheel's `.dist-info` folder, `project` the package's normalized name, `name` the wheel's file name for errors.
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
    """Return whether a module defines, imports or assigns `load_environment` at its top level, without running it."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
        return any(_binds(node) for node in tree.body)
    except UNPARSABLE as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def within_limit(content: bytes, name: str, kind: str) -> bytes:
    """Return a metadata file's content if its size is within the limit."""
    if len(content) > limits.MAX_METADATA_BYTES:
        raise PackageError(
            f"{name}: its {kind} has {len(content):,} bytes; expected at most {limits.MAX_METADATA_BYTES:,}"
        )
    return content


def _check_top(members: Members, info: str, project: str, name: str) -> str:
    """Check the top level of the wheel, except its metadata, and return the name of its only module."""
    modules = []
    for top in sorted({path.split("/")[0] for path in members} - {info}):
        is_folder = top not in members
        if is_folder or top.endswith(".py"):  # a folder without __init__.py can be imported too
            _check_name(top, is_folder, project, name)
            modules.append(top)
        elif top.lower().endswith(_STARTUP):
            raise PackageError(f"{name}: {top} would run whenever Python starts; remove it")
        elif not _DATA.fullmatch(top):
            raise PackageError(f"{name}: {top} is not allowed next to the module; move it into {module_of(project)}/")
    if len(modules) > 1:
        raise PackageError(f"{name}: {' and '.join(modules)} are both top-level modules; keep one of them")
    if not modules:
        raise PackageError(f"{name}: it has no module; expected {module_of(project)} with a {LOAD}()")
    [top] = modules
    file = top if top in members else f"{top}/__init__.py"
    if not _loads(members.get(file, b""), file, name):
        raise PackageError(f"{name}: expected a module with a {LOAD}(); {file} has none")
    return top if top not in members else top.removesuffix(".py")


def _check_name(top: str, is_folder: bool, project: str, name: str) -> None:
    """Check that a top-level module is named like the package and hides no other module."""
    if is_folder and top.lower().endswith(".data"):  # installers distribute NAME.data over the whole environment
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

    importlib.metadata reads this file with its own parser, which interprets indented lines, other delimiters and
    unusual line ends differently from `configparser`. Only lines that every parser reads in the same way are accepted.
    """
    source = f"{name}: its entry_points.txt"
    try:
        text = content.decode("ascii")
        for line in text.split("\n"):
            line = line.removesuffix("\r")
            if line.strip(" \t") and not _SECTION.fullmatch(line) and not _ENTRY.fullmatch(line):
                raise PackageError(
                    f"{source} has the line {line[:80]!r}; expected [{ENTRY_POINT_GROUP}] or NAME = MODULE"
                )
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=True, default_section="\0")
        parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] # names keep their case
        parser.read_string(text)
    except (configparser.Error, UnicodeError) as error:
        raise PackageError(f"{source} cannot be read: {str(error)[:200]}") from None
    for group in parser.sections():
        if group != ENTRY_POINT_GROUP:
            raise PackageError(
                f"{source} declares the group [{group[:80]}]; an environment may declare only [{ENTRY_POINT_GROUP}]"
            )
        for point, value in parser.items(group):
            _check_entry_point(point, value, project, module, source)


def _check_entry_point(point: str, value: str, project: str, module: str, source: str) -> None:
    try:
        is_own = normalize_name(point) == project
    except ConfigError:
        is_own = False
    if not is_own:
        raise PackageError(
            f"{source} declares the environment '{point[:80]}'; expected the package's name, '{project}'"
        )
    if value not in (module, f"{module}:{LOAD}"):
        raise PackageError(f"{source} names {value[:80]!r}; the module with a {LOAD}() is {module}")


def _binds(node: ast.stmt) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == LOAD
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return any((alias.asname or alias.name) == LOAD for alias in node.names)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(target, ast.Name) and target.id == LOAD for target in targets)
    if isinstance(node, (ast.If, ast.Try)):
        statements = [*node.body, *node.orelse]
        for handler in getattr(node, "handlers", []):
            statements += handler.body
        return any(map(_binds, statements))
    return False


def _loads(source: bytes, file: str, name: str) -> bool:
    if len(source) > limits.MAX_SOURCE_BYTES:
        raise PackageError(f"{name}: {file} has {len(source):,} bytes; expected at most {limits.MAX_SOURCE_BYTES:,}")
    try:
        return has_load_environment(source)
    except ValueError as error:
        raise PackageError(f"{name}: {file} cannot be parsed as Python: {error}") from None


@dataclass(frozen=True)
class Wheel:
    """Contents of a wheel, read without running it."""

    name: str
    version: str
    summary: str
    requires_python: str
    dependencies: list[str]
    licence: str
    authors: list[str]
    keywords: list[str]
    urls: dict[str, str]
    readme: str
    module: str
    """Name of the only top-level module, which defines `load_environment`."""
    content: str
    """SHA-256 of all files together; see `Manifest.content`."""
    files: dict[str, str]
    """SHA-256 of every file except RECORD, by path."""
    sha256: str
    """SHA-256 of the wheel itself."""
    size: int


def check_wheel(file: Path, name: str | None = None) -> Wheel:
    """Check a wheel and return its contents.

    `name` is the file name to check against, if the file is stored under another name.
    """
    name = name or file.name
    size, sha256 = _measured(file, name)
    with file.open("rb") as stream:
        members = zip_members(stream, name)
    info = _dist_info(members, name)
    hashes = {
        path: hashlib.sha256(content).hexdigest() for path, content in members.items() if path != f"{info}/RECORD"
    }
    _check_record(members, info, hashes, name)
    _check_tags(members, info, name)
    metadata = read_metadata(members[f"{info}/METADATA"], name)
    raw, _ = parse_email(members[f"{info}/METADATA"])  # versions of packaging write requirements in different ways
    project, version = project_of(metadata)
    _check_filename(name, project, version, "wheel", "METADATA")
    expected_info = f"{project.replace('-', '_')}-{version}.dist-info"
    if info != expected_info:
        raise PackageError(f"{name}: its metadata is in {info}; expected {expected_info}")
    return Wheel(
        name=project,
        version=version,
        summary=metadata.summary or "",
        requires_python=raw.get("requires_python", ""),
        dependencies=raw.get("requires_dist", []),
        licence=metadata.license_expression or metadata.license or "",
        authors=_authors(metadata, name),
        keywords=metadata.keywords or [],
        urls=metadata.project_urls or {},
        readme=metadata.description or "",
        module=check_contents(members, info, project, name),
        content=digest_content(hashes),
        files=hashes,
        sha256=sha256,
        size=size,
    )


def card_of_wheel(file: Path) -> Card | None:
    """Return the card in a checked wheel; None if there is none, or one that this version of rove cannot read."""
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.rpartition("/")[2] == CARD_FILE]
        if not names or archive.getinfo(names[0]).file_size > MAX_CARD_BYTES:
            return None
        return read_card(archive.read(names[0]))


def check_source(file: Path, name: str | None = None) -> tuple[str, str]:
    """Check a source archive (a gzipped tar of one folder with PKG-INFO and pyproject.toml); return its name and version."""
    name = name or file.name
    _measured(file, name)
    with file.open("rb") as packed, tempfile.TemporaryFile() as unpacked:
        members = tar_members(packed, unpacked, name)
    folder = name.removesuffix(".tar.gz")
    outside = next((path for path in members if not path.startswith(f"{folder}/")), None)
    if outside is not None:
        raise PackageError(f"{name}: {outside!r} is outside the folder {folder}/")
    for needed in ("PKG-INFO", "pyproject.toml"):
        if f"{folder}/{needed}" not in members:
            raise PackageError(f"{name}: it has no {folder}/{needed}")
    project, version = project_of(read_metadata(members[f"{folder}/PKG-INFO"], name))
    _check_filename(name, project, version, "source", "PKG-INFO")
    return project, version


def _check_filename(name: str, project: str, version: str, kind: str, metadata: str) -> None:
    expected = filename(project, version, kind)
    if name != expected:
        raise PackageError(f"{name}: its {metadata} describes {project} {version}; expected the file name {expected}")


def check_package(manifest: Manifest, wheel: Path, source: Path | None = None) -> Wheel:
    """Check that a manifest describes a wheel and a source archive correctly; the files may have any name."""
    archives = {"wheel": wheel, "source": source}
    for entry in manifest.files:
        file = archives[entry.kind]
        if file is None or not file.is_file():
            raise PackageError(f"{file or entry.filename} is missing, but the manifest lists it")
        check_file(file, entry.sha256, entry.size, entry.filename)
    if source is not None:
        if manifest.source_archive is None:
            raise PackageError(f"{source.name} is not listed in the manifest; build the package again")
        check_source(source, manifest.source_archive.filename)
    package = check_wheel(wheel, manifest.wheel.filename)
    for field in ("module", "content", "requires_python", "dependencies"):
        if getattr(package, field) != getattr(manifest, field):
            raise PackageError(
                f"{manifest.wheel.filename}: its {field} is {getattr(package, field)!r}, but the manifest has "
                f"{getattr(manifest, field)!r}; build the package again"
            )
    return package


def check_file(file: Path, sha256: str, size: int, name: str) -> None:
    """Check the size and hash of a file."""
    real_size, real = _measured(file, name)
    if (real_size, real) != (size, sha256):
        raise PackageError(
            f"{name} is not the expected file: it has {real_size:,} bytes with SHA-256 {real}, expected {size:,} bytes with "
            f"{sha256}; it was modified, or belongs to another version"
        )


def digest_content(hashes: Mapping[str, str]) -> str:
    """Return one hash of a wheel's files, independent of their order and compression. `hashes`: SHA-256 by path."""
    lines = sorted(f"{path} {sha256}\n" for path, sha256 in hashes.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _measured(file: Path, name: str) -> tuple[int, str]:
    """Return the size and SHA-256 of a file; refuse a file that is too large before reading it."""
    size = file.stat().st_size
    if not 0 < size <= limits.MAX_ARCHIVE_BYTES:
        raise PackageError(f"{name} has {size:,} bytes; expected 1 to {limits.MAX_ARCHIVE_BYTES:,}")
    with file.open("rb") as stream:
        return size, hashlib.file_digest(stream, "sha256").hexdigest()


def _dist_info(members: Members, name: str) -> str:
    """Return the `.dist-info` folder of a wheel."""
    folders = {path.split("/")[0] for path in members if "/" in path}
    info_folders = sorted(folder for folder in folders if folder.endswith(".dist-info"))
    if len(info_folders) != 1:
        raise PackageError(f"{name}: it has {len(info_folders)} folders *.dist-info; expected one")
    for needed in ("METADATA", "WHEEL", "RECORD"):
        if f"{info_folders[0]}/{needed}" not in members:
            raise PackageError(f"{name}: it has no {info_folders[0]}/{needed}")
    return info_folders[0]


def _check_record(members: Members, info: str, hashes: Mapping[str, str], name: str) -> None:
    """Check that RECORD lists exactly the files of the wheel, with their hashes and sizes."""
    rows: dict[str, tuple[str, str]] = {}
    try:
        text = within_limit(members[f"{info}/RECORD"], name, "RECORD").decode()
        for path, digest, size in csv.reader(io.StringIO(text, newline=""), strict=True):
            if path in rows:
                raise PackageError(f"{name}: its RECORD lists {path!r} twice")
            rows[path] = digest, size
    except (csv.Error, ValueError) as error:
        raise PackageError(f"{name}: its RECORD cannot be read: {error}") from None
    if rows.pop(f"{info}/RECORD", None) != ("", ""):
        raise PackageError(f"{name}: its RECORD does not list itself, without a hash")
    for path in sorted(rows.keys() ^ hashes.keys()):  # uninstalling deletes the files that RECORD lists, and no others
        problem = "is listed in its RECORD, but missing" if path in rows else "is not listed in its RECORD"
        raise PackageError(f"{name}: {path!r} {problem}")
    for path, (digest, size) in rows.items():
        if digest != record_hash(hashes[path]) or size not in ("", str(len(members[path]))):
            raise PackageError(f"{name}: {path!r} does not match its RECORD ({digest}, {size} bytes)")


def record_hash(sha256: str) -> str:
    """Convert a hexadecimal SHA-256 into the form that RECORD uses."""
    return "sha256=" + base64.urlsafe_b64encode(binascii.unhexlify(sha256)).rstrip(b"=").decode()


def _check_tags(members: Members, info: str, name: str) -> None:
    """Check that the wheel is pure Python."""
    text = within_limit(members[f"{info}/WHEEL"], name, "WHEEL").decode("utf-8", "replace")
    fields: dict[str, list[str]] = {}
    for line in text.strip("\r\n").split("\n"):
        key, colon, value = line.partition(":")
        if not colon or not key.replace("-", "").isalnum():
            raise PackageError(f"{name}: its WHEEL has the line {line[:80]!r}; expected KEY: VALUE")
        fields.setdefault(key.lower(), []).append(value.strip())
    tags = fields.pop("tag", [])
    for key, values in fields.items():
        if len(values) > 1:
            raise PackageError(f"{name}: its WHEEL has '{key}' more than once")
    [version], [pure] = fields.get("wheel-version", [""]), fields.get("root-is-purelib", [""])
    if not version.startswith("1."):
        raise PackageError(f"{name}: its WHEEL has version {version!r}; expected 1.0")
    if pure.lower() != "true" or "py3-none-any" not in tags:
        raise PackageError(
            f"{name}: it is for {', '.join(sorted(tags)) or 'no platform'}; expected pure Python (py3-none-any)"
        )


def project_of(metadata: Metadata) -> tuple[str, str]:
    """Return the normalized name and version from metadata."""
    return normalize_name(metadata.name), normalize_version(str(metadata.version))


def read_metadata(content: bytes, name: str) -> Metadata:
    """Parse the metadata of a wheel or source archive, and check its name and version."""
    try:
        raw, _ = parse_email(within_limit(content, name, "metadata"))
        check_requirements(raw.get("requires_python", ""), raw.get("requires_dist", []), name)
        content_type = raw.get("description_content_type", "")
        if len(content_type) > limits.MAX_LINE_CHARS:  # the standard library's parser takes quadratic time
            raise PackageError(
                f"{name}: its Description-Content-Type has {len(content_type):,} characters; expected at most "
                f"{limits.MAX_LINE_CHARS}"
            )
        metadata = Metadata.from_email(content, validate=True)
    except ExceptionGroup as errors:
        reasons = "; ".join(str(error) for error in errors.exceptions[:3])
        raise PackageError(f"{name}: its metadata is invalid: {reasons}") from None
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise PackageError(f"{name}: its metadata cannot be read: {error}") from None
    try:
        project_of(metadata)
    except ValueError as error:
        raise PackageError(f"{name}: {error}") from None
    return metadata


def _authors(metadata: Metadata, name: str) -> list[str]:
    """Return the authors' names, or their addresses if they have no name."""
    try:
        email_authors = getaddresses([metadata.author_email or ""])
    except RecursionError:
        raise PackageError(f"{name}: its Author-email nests too deep; write NAME <ADDRESS>") from None
    authors = [*(metadata.author or "").split(", "), *(name or address for name, address in email_authors)]
    return [author for author in authors if author]


MANIFEST, SIGNATURE, README = "manifest.json", "manifest.sig", "README.md"
PARTS = {"manifest": MANIFEST, "signature": SIGNATURE, "readme": README}
"""Parts of an upload whose file names are the same in every version."""


@dataclass(frozen=True)
class Package:
    """A package whose files match its manifest."""

    manifest: Manifest
    wheel: Wheel


def verify(folder: Path, keys: Collection[str] | None = None) -> Package:
    """Check a package completely, without running its code.

    `keys` are public keys; one of them must have signed the package. By default, a signature is optional, but must be
    valid.
    """
    content = _read(folder / MANIFEST, limits.MAX_MANIFEST_BYTES)
    if (folder / SIGNATURE).exists():
        check_signature(content, _read(folder / SIGNATURE, limits.MAX_SIGNATURE_BYTES), keys)
    elif keys is not None:
        raise PackageError(
            f"{folder} is not signed ({SIGNATURE} is missing); expected a signature by one of {len(keys)} keys"
        )
    manifest = read_manifest(content)
    source = manifest.source_archive
    wheel = check_package(manifest, folder / manifest.wheel.filename, folder / source.filename if source else None)
    readme = folder / README
    if readme.exists() and readme.read_bytes() != wheel.readme.encode():
        raise PackageError(f"{readme} differs from the README in the wheel; delete it, or build the package again")
    return Package(manifest, wheel)


def _read(file: Path, max_bytes: int) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except FileNotFoundError:
        raise PackageError(f"{file} is missing; give a folder made by rove build") from None
    if len(content) > max_bytes:
        raise PackageError(f"{file} has more than {max_bytes:,} bytes")
    return content
