"""Installing an environment: look it up, check what it is, show it, and put it into a virtual environment of its own.

Nothing of a package runs here. What a hub says is believed as far as it hangs together: index → manifest → wheel, by SHA-256;
`rove.lock` and the owner's signature say whether the index is to be believed.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from rove.core.errors import ConfigError, HubError, TrustError
from rove.hub.client import installed, known_keys
from rove.hub.client.conflicts import check_current
from rove.hub.client.hub import Hub
from rove.hub.client.installed import LOCAL, RECORD, Installed, being_changed, home
from rove.hub.client.listings import HubFile, Release
from rove.hub.client.lock import LOCK, Locked, check_locked
from rove.hub.client.requirements import ANSWERED_FOR, brought_along, check_python, needed
from rove.hub.package.archives import check_package
from rove.hub.package.manifest import V0, Manifest, read_manifest
from rove.hub.package.names import Reference
from rove.remote.venv import make_venv, run_pip, standing_in
from rove.utils.files import atomic_write

INSTALL = ("install", "--quiet", "--no-input")
NO_SOURCES = "--only-binary=:all:"
"""Dependencies come as wheels only: building one would run its code."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What would be installed; checked, but for the wheel where that is yet to be fetched."""

    reference: Reference
    """With its version."""
    origin: str
    """The hub, folder, wheel or git URL."""
    manifest: Manifest
    content: bytes
    """The manifest's bytes; b"" where a package has none and what is known of it was read from its wheel."""
    files: list[HubFile] = field(default_factory=list)
    """As the hub has them."""
    key: str | None = None
    """Who signed the manifest."""
    notes: list[str] = field(default_factory=list)
    """What is to be known before it is installed."""
    wheel: Path | None = None
    """Where it lies here already."""

    @property
    def sha256(self) -> str:
        """Of the manifest."""
        return hashlib.sha256(self.content).hexdigest() if self.content else ""

    @property
    def locked(self) -> Locked:
        """Its line of a lock file."""
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
    """What a hub has under a name, checked against the lock file and the owner's key.

    Args:
        locked: what the lock file has of it; its version is the one that is meant unless `reference` names one.
        trusted: see `known_keys.check_signature`.

    Raises:
        HubError: the hub does not have it.
        TrustError: it is not what it should be.
    """
    releases = await hub.releases(reference)
    release = releases.choose(reference.version or (locked and locked.version))
    reference = reference._replace(version=release.version)
    if locked is not None and locked.version == release.version:
        check_locked(locked, release.manifest, release.files, lock)
    content = await hub.manifest(reference, release.manifest)
    manifest = read_manifest(content)
    _check_is(manifest, reference, release)
    key = known_keys.check_signature(
        hub.where, reference.owner, content, await hub.signature(reference), releases.keys, trusted
    )
    notes = []
    if release.yanked is not None:
        notes.append(f"this version is yanked: {release.yanked}")
    if key is not None and known_keys.known_key(hub.where, reference.owner) is None:
        notes.append(
            f"signed; the key of '{reference.owner}' ({known_keys.short(key)}) is new here and will be remembered"
        )
    if manifest.needs.secrets:
        notes.append(f"it will see these environment variables: {', '.join(manifest.needs.secrets)}")
    return Offer(
        reference=reference,
        origin=hub.where,
        manifest=manifest,
        content=content,
        files=release.files,
        key=key,
        notes=notes,
    )


def _check_is(manifest: Manifest, reference: Reference, release: Release) -> None:
    if (manifest.name, manifest.version) != (reference.name, reference.version):
        raise TrustError(
            f"the manifest of {reference} is of {manifest.name} {manifest.version}; the hub has mixed them up, or has been "
            "tampered with; nothing was installed"
        )
    promised = {(file.filename, file.sha256, file.size) for file in manifest.files}
    if promised != {(file.filename, file.sha256, file.size) for file in release.files}:
        raise TrustError(
            f"the hub's index lists other files for {reference} than its manifest: one of them has been changed; nothing "
            "was installed"
        )


def check_runs(manifest: Manifest, who: str) -> None:
    """See that a package can run here.

    Raises:
        ConfigError: it needs another Python, or another rove.
    """
    check_python(manifest.requires_python, who)
    needed(manifest.dependencies, who)


async def fetch(hub: Hub, offer: Offer, folder: Path) -> Path:
    """The wheel, in a folder: the very one that the manifest promises, and harmless to unpack.

    Raises:
        TrustError, PackageError: it is another, or is not what a wheel should be.
    """
    entry = offer.manifest.wheel
    file = HubFile(filename=entry.filename, sha256=entry.sha256, size=entry.size)
    wheel = await hub.download(offer.reference, file, folder)
    check_package(msgspec.structs.replace(offer.manifest, files=[entry]), wheel)
    return wheel


def place(offer: Offer, wheel: Path, allow_source: bool = False) -> Installed:
    """Put a package into a virtual environment of its own, in place of another version. Killed at any moment, it has not
    been installed, and what was before still is.

    Args:
        allow_source: also dependencies that have to be built, whose code runs then.

    Raises:
        ConfigError: what it needs cannot be installed.
    """
    with being_changed(offer.reference):
        here = home(offer.reference)
        here.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{offer.manifest.version}-", dir=here))
        try:
            file = _furnish(offer, wheel, folder, allow_source)
            made = _installed(offer, wheel, folder.name, file)
            before = installed.find(offer.reference._replace(version=None)) if (here / RECORD).exists() else None
            atomic_write(here / RECORD, msgspec.json.format(msgspec.json.encode(made)) + b"\n")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        # The one before stays until the next time: a run may be using it.
        for other in here.iterdir():
            if other.is_dir() and other.name not in (folder.name, before and before.folder):
                shutil.rmtree(other, ignore_errors=True)
    _remember(offer)
    return made


def _furnish(offer: Offer, wheel: Path, folder: Path, allow_source: bool) -> str:
    """Fill the folder of an installed environment; where in it the file of the module is."""
    who, is_v0 = str(offer.reference), offer.manifest.compatibility == V0
    python = make_venv(folder / "venv", [])
    [packages] = (folder / "venv").glob("lib/python*/site-packages")
    wanted = [*needed(offer.manifest.dependencies, who), *(brought_along(wheel) if is_v0 else [])]
    with tempfile.TemporaryDirectory() as empty:
        answered = standing_in(Path(empty) / "wheels", ANSWERED_FOR)
        _install(python, wanted, wheel, allow_source, answered)
    shutil.copyfile(wheel, folder / offer.manifest.wheel.filename)
    (folder / "manifest.json").write_bytes(offer.content)
    module = offer.manifest.module
    for file in (packages / f"{module}.py", packages / module / "__init__.py"):
        if file.is_file():
            return str(file.relative_to(folder))
    raise HubError(f"{who} has no module '{module}', which its manifest names")


def place_here(offer: Offer, wheel: Path, allow_source: bool = False) -> None:
    """Put a package into the interpreter that runs this, where its dependencies may clash with others.

    Raises:
        ConfigError: as `place`, or it would replace or hide something else that is installed.
    """
    check_current(offer.manifest.name, offer.manifest.module)
    is_v0 = offer.manifest.compatibility == V0
    wanted = needed(offer.manifest.dependencies, str(offer.reference))
    _install(sys.executable, [*wanted, *(brought_along(wheel) if is_v0 else [])], wheel, allow_source)
    _remember(offer)


def _remember(offer: Offer) -> None:
    """Note who signed what was installed: from now on no other key of the owner's will do."""
    if offer.key is not None:
        known_keys.remember(offer.origin, offer.reference.owner, offer.key)


def _install(python: str, wanted: Sequence[str], wheel: Path, allow_source: bool, answered: Sequence[str] = ()) -> None:
    sources = () if allow_source else (NO_SOURCES,)
    if wanted:
        try:
            failed = f"what it needs cannot be installed ({', '.join(wanted)})"
            run_pip(python, [*INSTALL, *answered, *sources, *wanted], failed)
        except ConfigError as error:
            hint = "" if allow_source else "\nwhat has no wheel is built, which runs its code, with --allow-source only"
            raise ConfigError(f"{error}{hint}") from error
    run_pip(
        python,
        [*INSTALL, "--no-deps", "--no-index", "--force-reinstall", str(wheel)],
        f"{wheel.name} cannot be installed",
    )


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
