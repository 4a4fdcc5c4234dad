"""`rove.lock`: which environments a project uses, so exactly that another machine installs the same or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import tomli_w

from rove.core.config import read_toml
from rove.core.errors import ConfigError, TrustError
from rove.hub.client.listings import HubFile, check_filename
from rove.hub.package.names import Reference, check_name, check_owner, check_version
from rove.utils.files import atomic_write

LOCK = "rove.lock"
SCHEMA = 1
_HEAD = "# Which environments this project uses. `rove install` installs exactly these; keep it with the project.\n"
_HEX = 64


class Locked(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An environment of a lock file."""

    owner: str
    name: str
    version: str
    hub: str
    """Where it comes from: URL or folder."""
    manifest: str
    """SHA-256 of its manifest."""
    files: list[HubFile]

    @property
    def reference(self) -> Reference:
        """OWNER/NAME@VERSION."""
        return Reference(self.owner, self.name, self.version)


class _Content(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    schema: int
    environment: list[Locked] = []


def read_lock(file: Path) -> dict[tuple[str, str], Locked]:
    """What a lock file holds, by owner and name; nothing where there is no such file.

    Raises:
        ConfigError: it is not TOML, not a lock file, or one of a newer rove.
    """
    if not file.is_file():
        return {}
    values = read_toml(file)
    schema = values.get("schema")
    if schema != SCHEMA:
        raise ConfigError(f"{file} has schema {schema!r}; this rove reads {SCHEMA}")
    try:
        content = msgspec.convert(values, _Content)
        for one in content.environment:
            for check, part in ((check_owner, one.owner), (check_name, one.name), (check_version, one.version)):
                check(part)
            for file_of_it in one.files:
                check_filename(file_of_it.filename)
            if len(one.manifest) != _HEX:
                raise ConfigError(
                    f"manifest of {one.reference} is {one.manifest!r}; expected a SHA-256 of {_HEX} digits"
                )
    except (msgspec.ValidationError, ConfigError, TrustError) as error:
        raise ConfigError(f"{file} is not what `rove install` writes: {error}") from None
    return {(one.owner, one.name): one for one in content.environment}


def write_lock(file: Path, locked: Iterable[Locked]) -> None:
    """Write a lock file whole, in the order of owners and names."""
    rows = [msgspec.to_builtins(one) for one in sorted(locked, key=lambda one: (one.owner, one.name))]
    atomic_write(file, (_HEAD + tomli_w.dumps({"schema": SCHEMA, "environment": rows})).encode())


def check_locked(locked: Locked, manifest: str, files: Iterable[HubFile], file: Path) -> None:
    """See that what the hub has now is what was locked.

    Raises:
        TrustError: it is something else.
    """
    now = {one.filename: (one.sha256, one.size) for one in files}
    then = {one.filename: (one.sha256, one.size) for one in locked.files}
    if manifest == locked.manifest and now == then:
        return
    changed = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
    what = ["its manifest"] * (manifest != locked.manifest) + changed
    raise TrustError(
        f"{locked.reference} is not what {file} says: {', '.join(what)} differ{'s' * (len(what) == 1)}. A version never changes "
        "on a hub, so somebody has tampered with it, or the hub is another; nothing was installed. If you know why, take it "
        f"out of {file.name} and install it again"
    )
