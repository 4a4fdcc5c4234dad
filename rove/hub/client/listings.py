"""What a hub lists: environments, their versions, and the files of these."""

from __future__ import annotations

import msgspec
from packaging.version import Version

from rove.core.errors import HubError, TrustError
from rove.hub.package import limits


class Listed(msgspec.Struct, kw_only=True):
    """A line of the list of environments."""

    owner: str
    name: str
    version: str
    description: str = ""
    tags: list[str] = []
    compatibility: str = ""
    licence: str = ""
    updated: str = ""
    downloads: int = 0

    @property
    def reference(self) -> str:
        """OWNER/NAME."""
        return f"{self.owner}/{self.name}"


class Index(msgspec.Struct, kw_only=True):
    """The list of environments; `search` is the path to ask instead of reading it, where there is one."""

    schema: int
    hub: str = ""
    environments: list[Listed]
    search: str | None = None


class HubFile(msgspec.Struct, kw_only=True, frozen=True):
    """A file of a version."""

    filename: str
    sha256: str
    size: int


class Release(msgspec.Struct, kw_only=True):
    """A version as an environment's index lists it; `manifest` is the SHA-256 of its manifest."""

    version: str
    uploaded: str = ""
    yanked: str | None = None
    manifest: str
    files: list[HubFile]


class Releases(msgspec.Struct, kw_only=True):
    """An environment's index: versions, newest last, and the public keys of its owner."""

    schema: int
    owner: str
    name: str
    versions: list[Release]
    keys: list[str] = []

    def choose(self, version: str | None) -> Release:
        """A version; without one the newest that is not yanked, no pre-release if there is another.

        Raises:
            HubError: there is none.
        """
        if version is not None:
            found = next((one for one in self.versions if one.version == version), None)
            if found is None:
                known = ", ".join(one.version for one in self.versions[-10:]) or "none"
                raise HubError(f"{self.owner}/{self.name} has no version {version}; the hub has {known}")
            return found
        offered = [one for one in self.versions if one.yanked is None]
        if not offered:
            raise HubError(
                f"{self.owner}/{self.name} has no version that is not yanked; name one: {self.owner}/{self.name}@VERSION"
            )
        final = [one for one in offered if not Version(one.version).is_prerelease]
        return max(final or offered, key=lambda one: Version(one.version))


def check_filename(name: str) -> str:
    """The name of a file that may be written: no path, nothing hidden.

    Raises:
        TrustError: it is none.
    """
    if (
        not name
        or name.startswith(".")
        or len(name) > limits.PATH
        or not all(c.isalnum() or c in "-_.+!" for c in name)
    ):
        raise TrustError(f"{name[:80]!r} cannot be the name of a package's file")
    return name
