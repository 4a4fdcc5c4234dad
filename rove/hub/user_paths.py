"""Where the files of a user of hubs are."""

from __future__ import annotations

import os
from pathlib import Path


def config_folder() -> Path:
    """`$XDG_CONFIG_HOME/rove`."""
    return _base("XDG_CONFIG_HOME", ".config") / "rove"


def data_folder() -> Path:
    """`$XDG_DATA_HOME/rove`."""
    return _base("XDG_DATA_HOME", ".local/share") / "rove"


def _base(variable: str, usual: str) -> Path:
    given = os.environ.get(variable, "").strip()
    return Path(given) if given else Path.home() / usual
