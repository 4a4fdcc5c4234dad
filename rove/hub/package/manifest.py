"""The manifest of a package: written once by `rove build`, published with the wheel, shown to users before they install it."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rove.core.errors import PackageError
from rove.core.plain import UNREADABLE
from rove.hub.package import limits
from rove.hub.package.names import check_module, check_name, check_version


def parse_requirement(text: str) -> Requirement:
    """Parse a dependency such as "numpy>=1.26; python_version < '3.13'".

    The parser of `packaging` calls itself for each parenthesis, so their number is limited before it reads the text.
    """
    if len(text) > limits.MAX_DESCRIPTION_CHARS:
        raise ValueError(f"it has {len(text):,} characters; expected at most {limits.MAX_DESCRIPTION_CHARS}")
    if text.count("(") > limits.MAX_PARENTHESES:
        raise ValueError(f"it has {text.count('('):,} parentheses; expected at most {limits.MAX_PARENTHESES}")
    return Requirement(text)


def parse_specifiers(text: str) -> SpecifierSet:
    """Parse the Python versions that a package supports, such as ">=3.11,<4"."""
    if len(text) > limits.MAX_LINE_CHARS:
        raise ValueError(f"it has {len(text):,} characters; expected at most {limits.MAX_LINE_CHARS}")
    return SpecifierSet(text)


def applies(requirement: Requirement, extra: str = "") -> bool:
    """Return whether a requirement applies to this interpreter when `extra` is requested ("" requests none)."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


_ACTIVE = re.compile(
    r"<[\s/]*(script|style|iframe|object|embed|link|meta|img|svg|video|audio)\b|<[^<>]*\bon[a-z]+\s*=|javascript\s*:",
    re.IGNORECASE,
)
"""Pattern of markup that a browser would act on. Matching takes linear time for any text."""


def find_markup(text: str) -> str | None:
    """Return the first markup in a text that a browser would act on, or None. Other tags, such as <answer>, are allowed."""
    match = _ACTIVE.search(text.replace("\\", ""))
    return match.group() if match else None


SCHEMA = 1
ROVE, V0 = "rove", "verifiers v0"
WEB = ("https://", "http://")
"""Prefixes of addresses that may be shown as links."""
BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the displayed order of text."""

Line = Annotated[str, Meta(max_length=limits.MAX_LINE_CHARS)]
Lines = Annotated[list[Line], Meta(max_length=limits.MAX_ITEMS)]
Tag = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*\Z", max_length=limits.MAX_TAG_CHARS)]
Secret = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", max_length=limits.MAX_NAME_CHARS)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Commit = Annotated[str, Meta(pattern=r"^([0-9a-f]{40,64}(-dirty)?)?\Z")]
Count = Annotated[int, Meta(ge=0, le=2**53)]


class Argument(Struct, kw_only=True, frozen=True):
    """An argument of `load_environment`, from its source."""

    name: Line
    type: Line = ""
    """Annotation; "" if it has none."""
    default: Line | None = None
    """Default as Python source, such as "100" or "'easy'"; None if the argument is required."""


class PolicyScores(Struct, kw_only=True, frozen=True):
    """Score of a scripted policy, measured when the package was built."""

    reward: float
    """Mean reward of the scored rollouts."""
    n: Count
    """Number of scored rollouts."""


class Needs(Struct, kw_only=True, frozen=True):
    """Requirements of the environment on its machine."""

    network: bool = False
    secrets: Annotated[list[Secret], Meta(max_length=limits.MAX_ITEMS)] = field(default_factory=list)
    """Names of environment variables, never values."""
    sandbox: bool = False

    @property
    def description(self) -> str:
        """The requirements in words."""
        requirements: list[str] = []
        if self.network:
            requirements.append("network access")
        if self.sandbox:
            requirements.append("a sandbox")
        requirements += [f"key {name}" for name in self.secrets]
        return ", ".join(requirements) or "no network, no key, no sandbox"


class Source(Struct, kw_only=True, frozen=True):
    """Origin of a package as declared by its builder; unknown fields are ""."""

    repository: Line = ""
    commit: Commit = ""
    """Git commit, with "-dirty" if the folder had uncommitted changes."""
    builder: Line = ""
    """Build backend with its version."""


class File(Struct, kw_only=True, frozen=True):
    """A file of a package."""

    filename: Line
    kind: Literal["wheel", "source"]
    sha256: Sha256
    size: Annotated[int, Meta(ge=1, le=limits.MAX_ARCHIVE_BYTES)]


class Manifest(Struct, kw_only=True, frozen=True):
    """Description of a package, computed by `rove build` from pyproject.toml, the code and a few rollouts."""

    schema: Literal[1] = SCHEMA
    name: Line
    version: Line
    module: Line
    description: Annotated[str, Meta(max_length=limits.MAX_DESCRIPTION_CHARS)] = ""
    tags: Annotated[list[Tag], Meta(max_length=limits.MAX_ITEMS)] = field(default_factory=list)
    licence: Line = ""
    authors: Lines = field(default_factory=list)
    requires_python: Line = ""
    dependencies: Annotated[
        list[Annotated[str, Meta(max_length=limits.MAX_DESCRIPTION_CHARS)]], Meta(max_length=limits.MAX_ITEMS)
    ] = field(default_factory=list)
    compatibility: Literal["rove", "verifiers v0"] = ROVE
    reward_range: tuple[float, float] | None = None
    """Lowest and highest reward: declared in pyproject.toml, or observed in the policies' rollouts."""
    metrics: Lines = field(default_factory=list)
    tools: Lines = field(default_factory=list)
    policies: Annotated[dict[Line, PolicyScores], Meta(max_length=limits.MAX_ITEMS)] = field(default_factory=dict)
    seeds: Annotated[list[Count], Meta(max_length=limits.MAX_ITEMS)] = field(default_factory=list)
    """Seeds of the policies' rollouts."""
    needs: Needs = field(default_factory=Needs)
    data_sources: Lines = field(default_factory=list)
    arguments: Annotated[list[Argument], Meta(max_length=limits.MAX_ITEMS)] = field(default_factory=list)
    source: Source = field(default_factory=Source)
    rove: Line = ""
    """Version of rove that built the package."""
    content: Sha256
    """SHA-256 of the sorted lines "PATH SHA256\\n" of the wheel's files without RECORD; equal for wheels with equal files."""
    files: Annotated[list[File], Meta(min_length=1, max_length=2)]

    @property
    def wheel(self) -> File:
        """Entry of the wheel."""
        return next(file for file in self.files if file.kind == "wheel")

    @property
    def source_archive(self) -> File | None:
        """Entry of the source archive, or None."""
        return next((file for file in self.files if file.kind == "source"), None)


def manifest_bytes(manifest: Manifest) -> bytes:
    """Serialize a manifest canonically: UTF-8 JSON with sorted keys, no spaces and a final newline."""
    check_manifest(manifest)
    content = canonical(msgspec.to_builtins(manifest))
    read_manifest(content)  # msgspec checks length limits only when decoding
    return content


def read_manifest(content: bytes) -> Manifest:
    """Read and check a manifest.

    This function ignores fields of newer versions of rove. The signed bytes still contain these fields, because rove passes
    them on unchanged.
    """
    if len(content) > limits.MAX_MANIFEST_BYTES:
        raise PackageError(f"the manifest has {len(content):,} bytes; expected at most {limits.MAX_MANIFEST_BYTES:,}")
    try:
        document = msgspec.json.decode(content)
        written = canonical(document)
    except (OverflowError, ValueError, *UNREADABLE) as error:
        raise PackageError(f"the manifest cannot be read as JSON: {error}") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if type(schema) is not int or schema != SCHEMA:
        raise PackageError(
            f"the manifest has schema {schema!r}, this rove reads schema {SCHEMA}; update rove (pip install -U rove)"
        )
    if written != content:
        raise PackageError(
            "the manifest is not canonical JSON (sorted keys, no spaces, no duplicate keys, a final newline); "
            "build the package with rove build and do not edit manifest.json"
        )
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (ValueError, *UNREADABLE) as error:
        raise PackageError(f"the manifest is invalid: {error}") from None
    check_manifest(manifest)
    return manifest


def one_line(text: str, max_chars: int = limits.MAX_LINE_CHARS) -> str:
    """Return the first non-empty line of a text, truncated with "…" to `max_chars` characters."""
    line = " ".join(next((line for line in text.splitlines() if line.strip()), "").split())
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def canonical(document: object) -> bytes:
    """Return canonical JSON: sorted keys, no spaces, a final newline."""
    return msgspec.json.encode(document, order="sorted") + b"\n"


def _is_refused(char: str) -> bool:
    """Return whether a character starts a line, controls a terminal, or changes the direction of text."""
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in BIDIRECTIONAL


def check_manifest(manifest: Manifest) -> None:
    """Check the conditions that the types alone do not guarantee."""
    try:
        check_name(manifest.name)
        check_version(manifest.version)
        check_module(manifest.module)
    except ValueError as error:
        raise PackageError(f"the manifest: {error}") from None
    for name, text in _texts(msgspec.to_builtins(manifest)):
        bad = next(filter(_is_refused, text), None)
        if bad is not None:
            raise PackageError(
                f"the manifest's {name} has the character U+{ord(bad):04X}; write one line of plain text"
            )
    check_requirements(manifest.requires_python, manifest.dependencies, "the manifest")
    if manifest.reward_range is not None and not manifest.reward_range[0] <= manifest.reward_range[1]:
        raise PackageError(f"the manifest's reward_range is {list(manifest.reward_range)}; expected [lowest, highest]")
    numbers = [*(manifest.reward_range or ()), *(policy.reward for policy in manifest.policies.values())]
    if not all(map(math.isfinite, numbers)):
        raise PackageError(
            "the manifest has a reward that is not finite; fix the reward function that returned NaN or infinity"
        )
    if manifest.source.repository and not manifest.source.repository.startswith(WEB):
        raise PackageError(f"the manifest's repository is {manifest.source.repository!r}; expected https://…")
    if [file.kind for file in manifest.files] not in (["wheel"], ["wheel", "source"]):
        raise PackageError("the manifest's files must be one wheel, then at most one source archive")
    for file in manifest.files:
        expected = filename(manifest.name, manifest.version, file.kind)
        if file.filename != expected:
            raise PackageError(f"the manifest has the {file.kind} {file.filename!r}; expected {expected}")


def check_requirements(requires_python: str, dependencies: Iterable[str], subject: str) -> None:
    """Check that a package names its dependencies by index name and version."""
    try:
        parse_specifiers(requires_python)
    except ValueError as error:
        raise PackageError(
            f"{subject} requires Python {one_line(requires_python)!r}; expected something like >=3.11 ({one_line(str(error))})"
        ) from None
    for text in dependencies:
        try:
            requirement = parse_requirement(text)
        except ValueError as error:
            raise PackageError(
                f"{subject} has the dependency {one_line(text)!r}, which cannot be read: {error}"
            ) from None
        if requirement.url:
            raise PackageError(
                f"{subject} depends on {requirement.name} from {requirement.url}; name a version of it that an index has"
            )


def filename(name: str, version: str, kind: str) -> str:
    """Return the file name of a package's wheel or source archive."""
    stem = f"{name.replace('-', '_')}-{version}"
    return f"{stem}-py3-none-any.whl" if kind == "wheel" else f"{stem}.tar.gz"


def _texts(value: object, name: str = "") -> Iterable[tuple[str, str]]:
    """Yield every string of a manifest, including keys, with its field."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield name or "fields", key
            yield from _texts(item, f"{name}.{key}" if name else key)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item, name)
