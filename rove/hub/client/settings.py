"""Which hub is meant, and the token for it: flags, environment variables, `hub.toml`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import tomli_w

from rove.core.config import read_toml
from rove.core.errors import ConfigError
from rove.hub.user_paths import config_folder

HUB_VAR, TOKEN_VAR = "ROVE_HUB", "ROVE_HUB_TOKEN"


def hub_of(given: str | None = None) -> str | None:
    """Where the hub is: as given, else `$ROVE_HUB`, else as `rove hub login` has kept it; None: nothing says so."""
    where = given or os.environ.get(HUB_VAR, "").strip() or _content().get("hub")
    return None if where is None else normal(str(where))


def needed_hub(given: str | None = None) -> str:
    """The same, where nothing goes on without one.

    Raises:
        ConfigError: nothing says where it is.
    """
    where = hub_of(given)
    if where is None:
        raise ConfigError(
            f"no hub is known: give --hub URL_OR_FOLDER, set {HUB_VAR}, or keep one with `rove hub login URL_OR_FOLDER`. "
            "`rove hub serve` starts one"
        )
    return where


def needed_server(given: str | None = None) -> str:
    """The same, where something is to be published.

    Raises:
        ConfigError: nothing says where it is, or it is a folder.
    """
    where = needed_hub(given)
    if not is_url(where):
        raise ConfigError(
            f"the hub {where} is a folder, which takes nothing: start `rove hub serve`, and give --hub URL"
        )
    return where


def token_for(where: str, given: str | None = None) -> str | None:
    """The token to show a hub: `$ROVE_HUB_TOKEN` if it is the user's own hub, see `hub_of`; else the one kept for it.

    No other hub gets the variable's: a lock file of somebody else's may name any.

    Args:
        given: the hub that the user has named for this, if so.
    """
    token = os.environ.get(TOKEN_VAR, "").strip()
    if token and hub_of(given) == normal(where):
        return token
    tokens = _content().get("tokens", {})
    return tokens.get(normal(where)) if isinstance(tokens, dict) else None


def keep(where: str, token: str | None) -> Path:
    """Make a hub the usual one, and keep its token; returns the file, which only its owner can read."""
    content = _content()
    content["hub"] = normal(where)
    if token is not None:
        content["tokens"] = {**content.get("tokens", {}), normal(where): token}
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # 0600 from its first byte on
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(tomli_w.dumps(content))
        os.replace(draft, file)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return file


def normal(where: str) -> str:
    """One spelling of a hub's address: a URL without a slash at its end, a folder as a whole path."""
    where = where.strip()
    if is_url(where):
        return where.rstrip("/")
    return str(Path(where.removeprefix("file://")).expanduser().resolve())


def is_url(where: str) -> bool:
    """Whether a hub is asked over HTTP; anything else is a folder."""
    return where.lower().startswith(("http://", "https://"))


def _file() -> Path:
    return config_folder() / "hub.toml"


def _content() -> dict[str, Any]:
    return read_toml(_file()) if _file().is_file() else {}
