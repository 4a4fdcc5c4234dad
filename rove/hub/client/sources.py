"""Packages from sources other than a hub: a wheel, a folder with a pyproject.toml, a git repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec
from packaging.utils import canonicalize_name

from rove.core.errors import ConfigError
from rove.hub.client.hub import HubFile
from rove.hub.client.installed import LOCAL
from rove.hub.client.installing import VERIFIERS, Offer
from rove.hub.package.archives import check_package, check_wheel
from rove.hub.package.building import build
from rove.hub.package.manifest import ROVE, V0, File, Manifest, filename, parse_requirement, read_manifest
from rove.hub.package.names import Reference

CLONE_TIMEOUT_S = 600.0
_GIT = re.compile(
    r"(?:git\+)?(?P<url>(?:(?:https?|ssh|git|file)://[^/#]*/|[\w.-]+@[^/:#]+:)[^#]*?)"
    r"(?:@(?P<revision>[\w./-]+))?(?:#subdirectory=(?P<below>.+))?"
)
"""Address of a git repository. An "@" before the path ends the user name; an "@" in the path starts the revision."""
_USER = re.compile(r"(?<=://)[^/#]*@")


def is_git(target: str) -> bool:
    """Return whether an installation target is a git repository: git+URL, git@HOST:PATH, ssh://, or ending in .git."""
    match = _GIT.fullmatch(target)
    return match is not None and (
        target.startswith(("git+", "git@", "git://", "ssh://")) or match["url"].endswith(".git")
    )


def masked(text: str) -> str:
    """Remove the user part of URLs in a text, because it can contain a token."""
    return _USER.sub("", text)


def clone(target: str, folder: Path) -> tuple[Path, str]:
    """Clone a git repository without running its code; return the package's folder and the commit.

    `target` is a URL, optionally followed by "@REVISION" and "#subdirectory=FOLDER"; `folder` is created.
    """
    match = _GIT.fullmatch(target)
    if match is None:
        raise ConfigError(
            f"{masked(target)!r} is not the address of a git repository; expected git+https://HOST/PATH[@REVISION]"
        )
    _git("clone", "--quiet", "--", match["url"], str(folder))  # "--": an address is never read as an option
    if match["revision"]:
        _git("-C", str(folder), "checkout", "--quiet", "--detach", match["revision"], "--")
    commit = _git("-C", str(folder), "rev-parse", "HEAD").strip()
    below = (folder / (match["below"] or ".")).resolve()  # a repository can contain links that lead out of it
    if not below.is_relative_to(folder.resolve()) or not (below / "pyproject.toml").is_file():
        raise ConfigError(f"{masked(target)} has no pyproject.toml in {match['below'] or 'its top folder'}")
    return below, commit


def build_wheel(folder: Path, output: Path) -> Path:
    """Build a wheel with the package's build backend, without running the package itself."""
    package = build(folder, output, run_policies=False)
    return package.folder / package.manifest.wheel.filename


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=CLONE_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise ConfigError("git is not installed; install it, or give a folder or a wheel") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"git {words[0]} did not finish within {CLONE_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise ConfigError(masked(f"git {' '.join(words)} failed: {done.stderr.strip()[-500:]}"))
    return done.stdout


def offer_of_wheel(wheel: Path, origin: str = "") -> Offer:
    """Return a wheel as an offer, with the manifest next to it or, if there is none, a manifest derived from the wheel."""
    package = check_wheel(wheel)
    manifest, content = _adjacent_manifest(wheel, package.sha256)
    if manifest is not None:
        check_package(msgspec.structs.replace(manifest, files=[manifest.wheel]), wheel)
    else:
        wheel_name = filename(package.name, package.version, "wheel")
        required_names = {canonicalize_name(parse_requirement(text).name) for text in package.dependencies}
        manifest = Manifest(
            name=package.name,
            version=package.version,
            module=package.module,
            description=package.summary[:500],
            requires_python=package.requires_python,
            dependencies=package.dependencies,
            compatibility=V0 if VERIFIERS in required_names else ROVE,
            content=package.content,
            files=[File(filename=wheel_name, kind="wheel", sha256=package.sha256, size=package.size)],
        )
    entry = manifest.wheel
    return Offer(
        reference=Reference(LOCAL, manifest.name, manifest.version),
        origin=origin or str(wheel.resolve()),
        manifest=manifest,
        content=content,
        files=[HubFile(filename=entry.filename, sha256=entry.sha256, size=entry.size)],
        wheel=wheel,
    )


def _adjacent_manifest(wheel: Path, sha256: str) -> tuple[Manifest | None, bytes]:
    """Return the manifest next to a wheel if it describes this wheel."""
    file = wheel.with_name("manifest.json")
    if not file.is_file():
        return None, b""
    content = file.read_bytes()
    manifest = read_manifest(content)
    return (manifest, content) if manifest.wheel.sha256 == sha256 else (None, b"")
