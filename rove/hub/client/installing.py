"""Install an environment from a hub: resolve it, verify it, and install it into its own virtual environment.

Package code does not run here. Hashes link index → manifest → wheel; `rove.lock` and the owner's signature authenticate the
index.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import msgspec
import tomli_w
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rove
from rove.compat import PROVIDED_VERSIONS
from rove.core.config import read_toml
from rove.core.errors import ConfigError, HubError, TrustError
from rove.hub.client import installed, settings
from rove.hub.client.hub import Hub, HubFile, Release, check_filename
from rove.hub.client.installed import LOCAL, RECORD, Installed, environment_folder, install_lock
from rove.hub.package.archives import check_package, has_load_environment
from rove.hub.package.manifest import V0, Manifest, applies, parse_requirement, parse_specifiers, read_manifest
from rove.hub.package.names import Reference, check_name, check_owner, check_version
from rove.hub.package.variables import warnings_of
from rove.remote.venv import make_venv, run_pip, stand_in_arguments
from rove.utils.files import atomic_write
from rove.utils.systems import venv_packages

VERIFIERS = "verifiers"
PROVIDED = {"rove": (rove.__version__,), **PROVIDED_VERSIONS}
"""Dependencies that the installed rove provides, with the versions that it provides; they are not downloaded."""
V0_REQUIREMENTS = {"datasets": "datasets>=3.0", "openai": "openai>=1.50"}
"""Dependencies of the real `verifiers`, which v0 packages import without declaring them."""


def required_packages(dependencies: Iterable[str], subject: str) -> list[str]:
    """Return the dependencies to install: without rove and verifiers, and with the dependencies of requested rove extras.

    `subject` names the package in errors.
    """
    requirements: list[str] = []
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
            installed_version = rove.__version__
            message = f"{subject} requires {requirement}, but rove {installed_version} is installed; upgrade rove"
            _check_version(requirement, [installed_version], message)
            requirements += _requirements_of_extras(requirement.extras)
        elif name == VERIFIERS:
            provided_versions = PROVIDED_VERSIONS[VERIFIERS]
            message = (
                f"{subject} requires {requirement}; rove provides the API of verifiers up to {provided_versions[-1]}"
            )
            _check_version(requirement, provided_versions, message)
        else:
            requirements.append(text)
    return requirements


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
    """Check that a package supports this Python."""
    this_python = ".".join(map(str, sys.version_info[:3]))
    try:
        is_met = parse_specifiers(requires).contains(this_python, prereleases=True)
    except ValueError as error:
        raise ConfigError(f"{subject} requires Python {requires[:200]!r}, which cannot be parsed: {error}") from None
    if not is_met:
        raise ConfigError(f"{subject} requires Python {requires}, but this is Python {this_python}")


def _check_version(requirement: Requirement, versions: Iterable[str], message: str) -> None:
    if not any(requirement.specifier.contains(version, prereleases=True) for version in versions):
        raise ConfigError(message)


def _requirements_of_extras(extras: Iterable[str]) -> list[str]:
    try:
        declared = [Requirement(text) for text in metadata.requires("rove") or []]
    except metadata.PackageNotFoundError:
        return []
    requirements = []
    for requirement in declared:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            continue
        if any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            requirement.marker = None
            if canonicalize_name(requirement.name) == "rove":  # rove's extras may include others of its extras
                requirements += _requirements_of_extras(requirement.extras)
            else:
                requirements.append(str(requirement))
    return requirements


HINT = "install it without --into-current, into its own virtual environment"


def check_no_conflict(name: str, module: str) -> None:
    """Check that a package replaces no distribution and hides no module of this interpreter, except for environments.

    pip first uninstalls a distribution of the same name, even if the distribution contains other modules.

    `name` is the package's normalized name, `module` its only top-level module.
    """
    distributions = metadata.packages_distributions()  # by top-level module
    others = sorted({other for other in distributions.get(module, []) if canonicalize_name(other) != name})
    if others:
        raise ConfigError(f"the module '{module}' is already installed by {', '.join(others)}; {HINT}")
    replaced: list[str] = []
    for top, names in sorted(distributions.items()):
        if top == module or top.startswith("__editable__") or not top.isidentifier():
            continue
        if name in {str(canonicalize_name(distribution)) for distribution in names}:
            replaced.append(top)
    if replaced:
        raise ConfigError(f"it would replace '{name}', which is installed and contains {', '.join(replaced)}; {HINT}")
    file = _other_module(module)
    if file is not None:
        raise ConfigError(f"it would replace or hide the module {file}, which is not an environment; {HINT}")


def _other_module(module: str) -> Path | None:
    """Return the file that `import module` would run; None if there is no such file or it is an environment."""
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # a module that is running and has no spec
        return None
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin)
    with suppress(OSError, ValueError):
        if has_load_environment(file.read_bytes()):
            return None
    return file


LOCK = "rove.lock"
SCHEMA = 1
_HEAD = "# Environments that this project uses. `rove install` installs exactly these versions; commit this file.\n"
_HEX = 64


class Locked(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An environment in a lock file."""

    owner: str
    name: str
    version: str
    hub: str
    """URL or folder of the hub."""
    manifest: str
    """SHA-256 of the manifest."""
    files: list[HubFile]

    @property
    def reference(self) -> Reference:
        """OWNER/NAME@VERSION."""
        return Reference(self.owner, self.name, self.version)


class _Content(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    schema: int
    environment: list[Locked] = []


def read_lock(file: Path) -> dict[tuple[str, str], Locked]:
    """Read a lock file by owner and name; return {} if it does not exist."""
    if not file.is_file():
        return {}
    values = read_toml(file)
    schema = values.get("schema")
    if schema != SCHEMA:
        raise ConfigError(f"{file} has schema {schema!r}, but this version of rove reads {SCHEMA}; upgrade rove")
    try:
        content = msgspec.convert(values, _Content)
        for locked in content.environment:
            check_owner(locked.owner)
            check_name(locked.name)
            check_version(locked.version)
            for locked_file in locked.files:
                check_filename(locked_file.filename)
            if len(locked.manifest) != _HEX:
                raise ConfigError(
                    f"manifest of {locked.reference} is {locked.manifest!r}; expected a SHA-256 of {_HEX} digits"
                )
    except (msgspec.ValidationError, ConfigError, TrustError) as error:
        raise ConfigError(f"{file} is not a valid lock file: {error}") from None
    return {(locked.owner, locked.name): locked for locked in content.environment}


def write_lock(file: Path, locked: Iterable[Locked]) -> None:
    """Write a lock file atomically, sorted by owner and name."""
    ordered = sorted(locked, key=lambda environment: (environment.owner, environment.name))
    rows = [msgspec.to_builtins(environment) for environment in ordered]
    atomic_write(file, (_HEAD + tomli_w.dumps({"schema": SCHEMA, "environment": rows})).encode())


def check_locked(locked: Locked, manifest: str, files: Iterable[HubFile], file: Path) -> None:
    """Check that the hub still has the locked files."""
    published_files = {published.filename: (published.sha256, published.size) for published in files}
    locked_files = {entry.filename: (entry.sha256, entry.size) for entry in locked.files}
    if manifest == locked.manifest and published_files == locked_files:
        return
    names = published_files.keys() | locked_files.keys()
    changed = sorted(name for name in names if published_files.get(name) != locked_files.get(name))
    differences = changed if manifest == locked.manifest else ["its manifest", *changed]
    verb = "differs" if len(differences) == 1 else "differ"
    raise TrustError(
        f"{locked.reference} does not match {file}: {', '.join(differences)} {verb}. Versions on a hub never change, so the "
        "package was tampered with or comes from another hub; installation was cancelled. If this is expected, remove it from "
        f"{file.name} and install it again"
    )


INSTALL = ("install", "--quiet", "--no-input")
NO_SOURCES = "--only-binary=:all:"
"""Option of the installer to install dependencies only from wheels, because building from source runs a dependency's code."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A verified package that can be installed; if its wheel is not downloaded yet, `fetch` verifies the wheel later."""

    reference: Reference
    """The environment with its version."""
    origin: str
    """Hub, folder, wheel or git URL of the package."""
    manifest: Manifest
    content: bytes
    """Bytes of the manifest; b"" if the package has no manifest and `manifest` was derived from its wheel."""
    files: list[HubFile] = field(default_factory=list)
    """Files in the hub's index."""
    key: str | None = None
    """Public key that signed the manifest, or None."""
    notes: list[str] = field(default_factory=list)
    """Notes to show before installing."""
    wheel: Path | None = None
    """Local path of the wheel, if it is already on this machine."""

    @property
    def sha256(self) -> str:
        """SHA-256 of the manifest; "" without a manifest."""
        return hashlib.sha256(self.content).hexdigest() if self.content else ""

    @property
    def locked(self) -> Locked:
        """Entry for a lock file."""
        owner, name, _ = self.reference
        version = self.manifest.version
        return Locked(owner=owner, name=name, version=version, hub=self.origin, manifest=self.sha256, files=self.files)


async def look_up(
    hub: Hub,
    reference: Reference,
    locked: Locked | None = None,
    lock: Path = Path(LOCK),
    trusted: str | None = None,
) -> Offer:
    """Resolve an environment on a hub and verify it against the lock file and the owner's key.

    Args:
        reference: The environment; without a version, the locked or newest version is used.
    """
    releases = await hub.releases(reference)
    version = reference.version
    if version is None and locked is not None:
        version = locked.version
    release = releases.choose(version)
    reference = reference._replace(version=release.version)
    if locked is not None and locked.version == release.version:
        check_locked(locked, release.manifest, release.files, lock)
    content = await hub.manifest(reference, release.manifest)
    manifest = read_manifest(content)
    _check_matches(manifest, reference, release)
    key = settings.check_owner_signature(
        hub.address, reference.owner, content, await hub.signature(reference), releases.keys, trusted
    )
    notes = []
    if release.yanked is not None:
        notes.append(f"this version is yanked: {release.yanked}")
    if key is not None and settings.known_key(hub.address, reference.owner) is None:
        notes.append(f"signed; the key of '{reference.owner}' ({settings.fingerprint(key)}) is new and will be saved")
    if manifest.needs.secrets:
        notes.append(f"it will receive these environment variables: {', '.join(manifest.needs.secrets)}")
        notes += warnings_of(manifest.needs.secrets)
    return Offer(
        reference=reference,
        origin=hub.address,
        manifest=manifest,
        content=content,
        files=release.files,
        key=key,
        notes=notes,
    )


def _check_matches(manifest: Manifest, reference: Reference, release: Release) -> None:
    if (manifest.name, manifest.version) != (reference.name, reference.version):
        raise TrustError(
            f"the manifest of {reference} describes {manifest.name} {manifest.version}; the hub is misconfigured or was tampered "
            "with; installation was cancelled"
        )
    expected = {(file.filename, file.sha256, file.size) for file in manifest.files}
    if expected != {(file.filename, file.sha256, file.size) for file in release.files}:
        raise TrustError(
            f"the hub's index and the manifest of {reference} list different files; one of them was modified; installation was "
            "cancelled"
        )


def check_compatible(manifest: Manifest, subject: str) -> None:
    """Raise ConfigError if a package requires a different version of Python or rove."""
    check_python(manifest.requires_python, subject)
    required_packages(manifest.dependencies, subject)


async def fetch(hub: Hub, offer: Offer, folder: Path) -> Path:
    """Download the wheel into a folder and verify it."""
    wheel = await hub.download(offer.reference, offer.manifest.wheel, folder)
    check_package(msgspec.structs.replace(offer.manifest, files=[offer.manifest.wheel]), wheel)
    return wheel


def install(offer: Offer, wheel: Path, allow_source: bool = False) -> Installed:
    """Install a package into its own virtual environment, replacing another version. Installation is atomic."""
    with install_lock(offer.reference):
        environment = environment_folder(offer.reference)
        environment.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{offer.manifest.version}-", dir=environment))
        try:
            file = _fill_folder(offer, wheel, folder, allow_source)
            record = _installed(offer, wheel, folder.name, file)
            # Keep the previous version until the next installation: a run may be using it.
            kept_folders = {folder.name}
            previous = installed.find(offer.reference._replace(version=None))
            if previous is not None:
                kept_folders.add(previous.folder)
            atomic_write(environment / RECORD, msgspec.json.format(msgspec.json.encode(record)) + b"\n")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        for entry in environment.iterdir():
            if entry.is_dir() and entry.name not in kept_folders:
                shutil.rmtree(entry, ignore_errors=True)
    _remember_key(offer)
    return record


def _fill_folder(offer: Offer, wheel: Path, folder: Path, allow_source: bool) -> str:
    """Install the wheel and its dependencies into a folder; return the path of the module's file in it."""
    python = make_venv(folder / "venv", [])
    packages = venv_packages(folder / "venv")
    with tempfile.TemporaryDirectory() as empty:
        # Stand-ins satisfy the package's requirements of rove and verifiers, which must not be downloaded.
        _install(python, offer, wheel, allow_source, stand_in_arguments(Path(empty) / "wheels", PROVIDED))
    shutil.copyfile(wheel, folder / offer.manifest.wheel.filename)
    (folder / "manifest.json").write_bytes(offer.content)
    module = offer.manifest.module
    for file in (packages / f"{module}.py", packages / module / "__init__.py"):
        if file.is_file():
            return str(file.relative_to(folder))
    raise HubError(f"{offer.reference} does not contain the module '{module}' that its manifest names")


def install_into_current(offer: Offer, wheel: Path, allow_source: bool = False) -> None:
    """Install a package into the current interpreter, where its dependencies can conflict with other packages."""
    check_no_conflict(offer.manifest.name, offer.manifest.module)
    _install(sys.executable, offer, wheel, allow_source)
    _remember_key(offer)


def _remember_key(offer: Offer) -> None:
    """Save the key that signed the package; later versions must use the same key."""
    if offer.key is not None:
        settings.remember_key(offer.origin, offer.reference.owner, offer.key)


def _install(python: str, offer: Offer, wheel: Path, allow_source: bool, pip_options: Sequence[str] = ()) -> None:
    """Install the dependencies of a package, then its wheel."""
    requirements = required_packages(offer.manifest.dependencies, str(offer.reference))
    if offer.manifest.compatibility == V0:
        requirements += undeclared_v0_requirements(wheel)
    sources = () if allow_source else (NO_SOURCES,)
    if requirements:
        try:
            failed = f"its dependencies cannot be installed ({', '.join(requirements)})"
            run_pip(python, [*INSTALL, *pip_options, *sources, *requirements], failed)
        except ConfigError as error:
            if allow_source:
                raise
            hint = "add --allow-source to build dependencies without a wheel, which runs their code"
            raise ConfigError(f"{error}\n{hint}") from error
    # pip must neither look for another version of a verified wheel nor keep an installed one of the same number.
    arguments = [*INSTALL, "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
    run_pip(python, arguments, f"{wheel.name} cannot be installed")


def _installed(offer: Offer, wheel: Path, folder: str, file: str) -> Installed:
    owner, name, _ = offer.reference
    return Installed(
        owner=owner,
        name=name,
        version=offer.manifest.version,
        module=offer.manifest.module,
        folder=folder,
        file=file,
        origin=offer.origin,
        manifest=offer.sha256,
        wheel=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        key=offer.key,
        secrets=[] if owner == LOCAL else list(offer.manifest.needs.secrets),
        compatibility=offer.manifest.compatibility,
        installed=datetime.now(UTC).isoformat(timespec="seconds"),
    )
