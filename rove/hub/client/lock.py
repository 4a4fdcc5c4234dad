"""`rove.lock`: the exact versions and hashes of the environments that a project uses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import tomli_w

from rove.core.config import read_toml
from rove.core.errors import ConfigError, TrustError
from rove.hub.client.hub import HubFile, check_filename
from rove.hub.package.names import Reference, check_name, check_owner, check_version
from rove.utils.files import atomic_write

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
    """Read a lock file by owner and name; return {} if it does not exist.

    Raises:
        ConfigError: It is not a valid lock file, or was written by a newer rove.
    """
    if not file.is_file():
        return {}
    values = read_toml(file)
    schema = values.get("schema")
    if schema != SCHEMA:
        raise ConfigError(f"{file} has schema {schema!r}, but this version of rove reads {SCHEMA}; upgrade rove")
    try:
        content = msgspec.convert(values, _Content)
        for one in content.environment:
            for check, part in ((check_owner, one.owner), (check_name, one.name), (check_version, one.version)):
                check(part)
            for locked_file in one.files:
                check_filename(locked_file.filename)
            if len(one.manifest) != _HEX:
                raise ConfigError(
                    f"manifest of {one.reference} is {one.manifest!r}; expected a SHA-256 of {_HEX} digits"
                )
    except (msgspec.ValidationError, ConfigError, TrustError) as error:
        raise ConfigError(f"{file} is not a valid lock file: {error}") from None
    return {(one.owner, one.name): one for one in content.environment}


def write_lock(file: Path, locked: Iterable[Locked]) -> None:
    """Write a lock file atomically, sorted by owner and name."""
    rows = [msgspec.to_builtins(one) for one in sorted(locked, key=lambda one: (one.owner, one.name))]
    atomic_write(file, (_HEAD + tomli_w.dumps({"schema": SCHEMA, "environment": rows})).encode())


def check_locked(locked: Locked, manifest: str, files: Iterable[HubFile], file: Path) -> None:
    """Check that the hub still has the locked files.

    Raises:
        TrustError: The manifest or a file differs.
    """
    now = {one.filename: (one.sha256, one.size) for one in files}
    then = {one.filename: (one.sha256, one.size) for one in locked.files}
    if manifest == locked.manifest and now == then:
        return
    changed = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
    differences = ["its manifest"] * (manifest != locked.manifest) + changed
    raise TrustError(
        f"{locked.reference} does not match {file}: {', '.join(differences)} differ{'s' * (len(differences) == 1)}. Versions "
        "on a hub never change, so the package was tampered with or comes from another hub; installation was cancelled. If "
        f"this is expected, remove it from {file.name} and install it again"
    )
