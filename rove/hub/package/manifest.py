"""A package's manifest: what people look at before they install it. It travels beside the wheel and is written once."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from rove.core.errors import PackageError
from rove.hub.package import limits
from rove.hub.package.dependencies import parse_requirement, parse_specifiers
from rove.hub.package.names import check_module, check_name, check_version

SCHEMA = 1
ROVE, V0 = "rove", "verifiers v0"
WEB = ("https://", "http://")
"""How an address begins that may be shown as a link."""
BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that show text in another order than it has."""

Line = Annotated[str, Meta(max_length=limits.LINE)]
Lines = Annotated[list[Line], Meta(max_length=limits.ITEMS)]
Tag = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*\Z", max_length=limits.TAG)]
Secret = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", max_length=limits.NAME)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Commit = Annotated[str, Meta(pattern=r"^([0-9a-f]{40,64}(-dirty)?)?\Z")]
Whole = Annotated[int, Meta(ge=0, le=2**53)]


class Argument(Struct, kw_only=True, frozen=True):
    """An argument of `load_environment`, as its source says it."""

    name: Line
    type: Line = ""
    """Its annotation; "" where it has none."""
    default: Line | None = None
    """As it is written in Python, "100" or "'easy'"; None: it has to be given."""


class PolicyScores(Struct, kw_only=True, frozen=True):
    """How one of its scripted policies scored when the package was built."""

    reward: float
    """Mean over the rollouts that were scored."""
    n: Whole
    """How many these were."""


class Needs(Struct, kw_only=True, frozen=True):
    """What the environment needs of the machine that it runs on."""

    network: bool = False
    secrets: Annotated[list[Secret], Meta(max_length=limits.ITEMS)] = field(default_factory=list)
    """Names of environment variables; never their values."""
    sandbox: bool = False


class Source(Struct, kw_only=True, frozen=True):
    """Where a package comes from, as its builder says; "" where nothing is known."""

    repository: Line = ""
    commit: Commit = ""
    """Of git; with "-dirty" where the folder had changes that were not committed."""
    builder: Line = ""
    """What built the wheel, with its version."""


class File(Struct, kw_only=True, frozen=True):
    """A file of a package."""

    filename: Line
    kind: Literal["wheel", "source"]
    sha256: Sha256
    size: Annotated[int, Meta(ge=1, le=limits.ARCHIVE)]


class Manifest(Struct, kw_only=True, frozen=True):
    """What a package is; everything in it is computed when it is built, from pyproject.toml, the code and a few rollouts."""

    schema: Literal[1] = SCHEMA
    name: Line
    version: Line
    module: Line
    description: Annotated[str, Meta(max_length=limits.DESCRIPTION)] = ""
    tags: Annotated[list[Tag], Meta(max_length=limits.ITEMS)] = field(default_factory=list)
    licence: Line = ""
    authors: Lines = field(default_factory=list)
    requires_python: Line = ""
    dependencies: Annotated[
        list[Annotated[str, Meta(max_length=limits.DESCRIPTION)]], Meta(max_length=limits.ITEMS)
    ] = field(default_factory=list)
    compatibility: Literal["rove", "verifiers v0"] = ROVE
    reward_range: tuple[float, float] | None = None
    """Lowest and highest reward: as the author says in pyproject.toml, or as the players' rollouts had it."""
    metrics: Lines = field(default_factory=list)
    tools: Lines = field(default_factory=list)
    policies: Annotated[dict[Line, PolicyScores], Meta(max_length=limits.ITEMS)] = field(default_factory=dict)
    seeds: Annotated[list[Whole], Meta(max_length=limits.ITEMS)] = field(default_factory=list)
    """With which the players' scores were taken."""
    needs: Needs = field(default_factory=Needs)
    data_sources: Lines = field(default_factory=list)
    arguments: Annotated[list[Argument], Meta(max_length=limits.ITEMS)] = field(default_factory=list)
    source: Source = field(default_factory=Source)
    rove: Line = ""
    """The version of rove that built it."""
    content: Sha256
    """Of the wheel's files but RECORD: SHA-256 of the lines "PATH SHA256\\n", sorted. Says whether two wheels hold the same."""
    files: Annotated[list[File], Meta(min_length=1, max_length=2)]

    @property
    def wheel(self) -> File:
        """The wheel's entry."""
        return next(file for file in self.files if file.kind == "wheel")

    @property
    def source_archive(self) -> File | None:
        """The source archive's entry; None where there is none."""
        return next((file for file in self.files if file.kind == "source"), None)


def manifest_bytes(manifest: Manifest) -> bytes:
    """The one way to write a manifest: UTF-8 JSON with sorted keys and no spaces, a newline at its end.

    Raises:
        PackageError: what `read_manifest` would refuse.
    """
    check_manifest(manifest)
    content = canonical(msgspec.to_builtins(manifest))
    read_manifest(content)  # the limits of lengths, which a Struct that is made in Python does not check
    return content


def read_manifest(content: bytes) -> Manifest:
    """Read and check a manifest.

    Fields that only a newer rove knows are not in the result, but they are in the bytes: these are kept and passed on as they
    are, and a signature is over them.

    Raises:
        PackageError: it is too large, not JSON, of a schema that this rove does not know, not in the one way to write it (see
            `manifest_bytes`), or a field is not what it should be.
    """
    if len(content) > limits.MANIFEST:
        raise PackageError(f"the manifest has {len(content):,} bytes; expected at most {limits.MANIFEST:,}")
    try:
        document = msgspec.json.decode(content)
        written = canonical(document)
    except (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError, ValueError) as error:
        raise PackageError(f"the manifest cannot be read as JSON: {error}") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if type(schema) is not int or schema != SCHEMA:
        raise PackageError(
            f"the manifest has schema {schema!r}, this rove reads schema {SCHEMA}; update rove (pip install -U rove)"
        )
    if written != content:
        raise PackageError(
            "the manifest is not in its one form (sorted keys, no spaces, no key twice, a newline at the end); "
            "build the package with rove build and leave manifest.json as it is"
        )
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PackageError(f"the manifest is not one: {error}") from None
    check_manifest(manifest)
    return manifest


def one_line(text: str, most: int = limits.LINE) -> str:
    """A text as a manifest may hold it: its first line that is not empty, cut off with "…" beyond `most` characters."""
    line = " ".join(next((line for line in text.splitlines() if line.strip()), "").split())
    return line if len(line) <= most else line[: most - 1] + "…"


def canonical(document: Any) -> bytes:
    """JSON in its one form."""
    return msgspec.json.encode(document, order="sorted") + b"\n"


def check_manifest(manifest: Manifest) -> None:
    """Check what types alone do not say.

    Raises:
        PackageError: a field is not what it should be.
    """
    try:
        check_name(manifest.name)
        check_version(manifest.version)
        check_module(manifest.module)
    except ValueError as error:
        raise PackageError(f"the manifest: {error}") from None
    for name, text in _texts(msgspec.to_builtins(manifest)):
        odd = next((c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in BIDIRECTIONAL), None)
        if odd is not None:
            raise PackageError(
                f"the manifest's {name} has the character U+{ord(odd):04X}; write one line of plain text"
            )
    check_requirements(manifest.requires_python, manifest.dependencies, "the manifest")
    if manifest.reward_range is not None and not manifest.reward_range[0] <= manifest.reward_range[1]:
        raise PackageError(f"the manifest's reward_range is {list(manifest.reward_range)}; expected [lowest, highest]")
    numbers = [*(manifest.reward_range or ()), *(player.reward for player in manifest.policies.values())]
    if not all(map(math.isfinite, numbers)):
        raise PackageError("the manifest's rewards are not all finite; a reward function gave NaN or infinity")
    if manifest.source.repository and not manifest.source.repository.startswith(WEB):
        raise PackageError(f"the manifest's repository is {manifest.source.repository!r}; expected https://…")
    if [file.kind for file in manifest.files] not in (["wheel"], ["wheel", "source"]):
        raise PackageError("the manifest's files are not one wheel, and after it at most one source archive")
    for file in manifest.files:
        if file.filename != filename(manifest.name, manifest.version, file.kind):
            raise PackageError(
                f"the manifest has the {file.kind} {file.filename!r}; "
                f"expected {filename(manifest.name, manifest.version, file.kind)}"
            )


def check_requirements(requires_python: str, dependencies: Iterable[str], whose: str) -> None:
    """Check that a package's dependencies are found by name on an index.

    Raises:
        PackageError: one cannot be read, or names a URL or a path: it would run or fetch what nobody has checked.
    """
    try:
        parse_specifiers(requires_python)
    except ValueError as error:
        raise PackageError(
            f"{whose} requires Python {one_line(requires_python)!r}; expected something like >=3.11 ({one_line(str(error))})"
        ) from None
    for text in dependencies:
        try:
            requirement = parse_requirement(text)
        except ValueError as error:
            raise PackageError(
                f"{whose} has the dependency {one_line(text)!r}, which cannot be read: {error}"
            ) from None
        if requirement.url:
            raise PackageError(
                f"{whose} depends on {requirement.name} from {requirement.url}; name a version of it that an index has"
            )


def filename(name: str, version: str, kind: str) -> str:
    """How a package's wheel or source archive is called."""
    stem = f"{name.replace('-', '_')}-{version}"
    return f"{stem}-py3-none-any.whl" if kind == "wheel" else f"{stem}.tar.gz"


def _texts(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    """Every text of a manifest, keys included, with the field it is in."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield name or "fields", key
            yield from _texts(item, f"{name}.{key}" if name else key)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item, name)
