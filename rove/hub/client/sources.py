"""Packages that come from no hub: a wheel, a folder with a pyproject.toml, a git repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec

from rove.core.errors import ConfigError
from rove.hub.client.installed import LOCAL
from rove.hub.client.installing import Offer
from rove.hub.client.listings import HubFile
from rove.hub.client.requirements import VERIFIERS
from rove.hub.package.archives import check_package, check_wheel
from rove.hub.package.building import build
from rove.hub.package.manifest import ROVE, V0, File, Manifest, filename, read_manifest
from rove.hub.package.names import Reference

CLONE_SECONDS = 600.0
_GIT = re.compile(
    r"(?:git\+)?(?P<url>(?:(?:https?|ssh|git|file)://[^/#]*/|[\w.-]+@[^/:#]+:)[^#]*?)"
    r"(?:@(?P<revision>[\w./-]+))?(?:#subdirectory=(?P<below>.+))?"
)
"""An "@" before the path is a user's, one in it a revision's."""
_USER = re.compile(r"(?<=://)[^/#]*@")


def is_git(target: str) -> bool:
    """Whether something to install is the address of a git repository: git+URL, git@HOST:PATH, ssh://, or what ends in .git."""
    found = _GIT.fullmatch(target)
    return found is not None and (
        target.startswith(("git+", "git@", "git://", "ssh://")) or found["url"].endswith(".git")
    )


def masked(words: str) -> str:
    """The same without what stands before the host in addresses: it may be a token."""
    return _USER.sub("", words)


def clone(target: str, folder: Path) -> tuple[Path, str]:
    """Get a git repository, whole, without running anything of it; the package's folder in it, and the commit.

    Args:
        target: URL, then perhaps "@REVISION", then perhaps "#subdirectory=FOLDER".
        folder: where to put it; there is none yet.

    Raises:
        ConfigError: git cannot get it.
    """
    found = _GIT.fullmatch(target)
    if found is None:
        raise ConfigError(
            f"{masked(target)!r} is no address of a git repository; expected git+https://HOST/PATH[@REVISION]"
        )
    _git("clone", "--quiet", "--", found["url"], str(folder))
    if found["revision"]:
        _git("-C", str(folder), "checkout", "--quiet", "--detach", found["revision"], "--")
    commit = _git("-C", str(folder), "rev-parse", "HEAD").strip()
    below = (folder / (found["below"] or ".")).resolve()
    if not below.is_relative_to(folder.resolve()) or not (below / "pyproject.toml").is_file():
        raise ConfigError(f"{masked(target)} has no pyproject.toml in {found['below'] or 'its top folder'}")
    return below, commit


def built(folder: Path, output: Path) -> Path:
    """The wheel of a package's folder, built by the backend that its pyproject.toml names; nothing of the package itself runs.

    Raises:
        PackageError: the backend fails, or what it made is no environment's package.
    """
    package = build(folder, output, playing=False)
    return package.folder / package.manifest.wheel.filename


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=CLONE_SECONDS, check=False)
    except FileNotFoundError:
        raise ConfigError("git is not installed; install it, or give a folder or a wheel") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"git {words[0]} did not end within {CLONE_SECONDS:g} s") from None
    if done.returncode:
        raise ConfigError(masked(f"git {' '.join(words)} failed: {done.stderr.strip()[-500:]}"))
    return done.stdout


def offer_of_wheel(wheel: Path, origin: str = "") -> Offer:
    """A wheel as an offer, with the manifest that lies beside it, if there is one; else with what the wheel says itself.

    Raises:
        PackageError: it is no wheel of an environment, or the manifest is of another.
    """
    found = check_wheel(wheel)
    manifest, content = _beside(wheel, found.sha256)
    if manifest is not None:
        check_package(msgspec.structs.replace(manifest, files=[manifest.wheel]), wheel)
    else:
        for_v0 = any(re.match(rf"{VERIFIERS}\b(?!-)", one) for one in found.dependencies)
        manifest = Manifest(
            name=found.name,
            version=found.version,
            module=found.module,
            description=found.summary[:500],
            requires_python=found.requires_python,
            dependencies=found.dependencies,
            compatibility=V0 if for_v0 else ROVE,
            content=found.content,
            files=[
                File(
                    filename=filename(found.name, found.version, "wheel"),
                    kind="wheel",
                    sha256=found.sha256,
                    size=found.size,
                )
            ],
        )
    reference = Reference(LOCAL, manifest.name, manifest.version)
    entry = manifest.wheel
    return Offer(
        reference=reference,
        origin=origin or str(wheel.resolve()),
        manifest=manifest,
        content=content,
        files=[HubFile(filename=entry.filename, sha256=entry.sha256, size=entry.size)],
        wheel=wheel,
    )


def _beside(wheel: Path, sha256: str) -> tuple[Manifest | None, bytes]:
    """The manifest that lies beside a wheel, if it is about this one."""
    file = wheel.with_name("manifest.json")
    if not file.is_file():
        return None, b""
    content = file.read_bytes()
    manifest = read_manifest(content)
    return (manifest, content) if manifest.wheel.sha256 == sha256 else (None, b"")
