"""The import alias of this process, which its worker processes must install as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ImportAlias:
    """A library that this process imports under another name; see `rove.compat`.

    Args:
        setup: "module:function" that installs the alias in a worker process.
        provided_versions: distributions that the alias replaces, so that they need not be installed, with the versions it
            provides.
    """

    setup: str
    provided_versions: Mapping[str, tuple[str, ...]]


_active: ImportAlias | None = None


def active_import_alias() -> ImportAlias | None:
    """Return the alias that is installed in this process; None if there is none."""
    return _active


def set_import_alias(alias: ImportAlias | None) -> None:
    """Record which alias is installed in this process; None means that no alias is installed."""
    global _active
    _active = alias
