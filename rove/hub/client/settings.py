"""Address and token of the hub to use, from flags, environment variables and `hub.toml`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import tomli_w

from rove.core.config import read_toml
from rove.core.errors import ConfigError
from rove.utils.files import config_folder

HUB_VAR, TOKEN_VAR = "ROVE_HUB", "ROVE_HUB_TOKEN"


def hub_of(given: str | None = None) -> str | None:
    """Return the address of the hub: `given`, else `$ROVE_HUB`, else the one saved by `rove hub login`, else None."""
    where = given or os.environ.get(HUB_VAR, "").strip() or _content().get("hub")
    return None if where is None else normal(str(where))


def needed_hub(given: str | None = None) -> str:
    """Return the address of the hub as `hub_of`, but require one.

    Raises:
        ConfigError: No hub is configured.
    """
    where = hub_of(given)
    if where is None:
        raise ConfigError(
            f"no hub is configured: add --hub URL_OR_FOLDER, set {HUB_VAR}, or run `rove hub login URL_OR_FOLDER`. "
            "Start your own with `rove hub serve`"
        )
    return where


def needed_server(given: str | None = None) -> str:
    """Return the address of a hub that accepts uploads.

    Raises:
        ConfigError: No hub is configured, or it is a folder.
    """
    where = needed_hub(given)
    if not is_url(where):
        raise ConfigError(f"the hub {where} is a read-only folder; start `rove hub serve` and add --hub URL")
    return where


def token_for(where: str, given: str | None = None) -> str | None:
    """Return the token for a hub: `$ROVE_HUB_TOKEN` for the user's own hub (see `hub_of`), else the saved one.

    The variable's token is not sent to any other hub, because an untrusted lock file can name any address.

    Args:
        where: Address of the hub.
        given: The hub that the user named in the command, if any.
    """
    token = os.environ.get(TOKEN_VAR, "").strip()
    if token and hub_of(given) == normal(where):
        return token
    tokens = _content().get("tokens", {})
    return tokens.get(normal(where)) if isinstance(tokens, dict) else None


def keep(where: str, token: str | None) -> Path:
    """Save a hub as the default with its token, in a file that only the user can read; return the file."""
    content = _content()
    content["hub"] = normal(where)
    if token is not None:
        content["tokens"] = {**content.get("tokens", {}), normal(where): token}
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # created with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(tomli_w.dumps(content))
        os.replace(draft, file)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return file


def normal(where: str) -> str:
    """Normalize a hub's address: a URL without trailing slash, or an absolute path."""
    where = where.strip()
    if is_url(where):
        return where.rstrip("/")
    return str(Path(where.removeprefix("file://")).expanduser().resolve())


def is_url(where: str) -> bool:
    """Return whether an address is an HTTP URL; anything else is a folder."""
    return where.lower().startswith(("http://", "https://"))


def _file() -> Path:
    return config_folder() / "hub.toml"


def _content() -> dict[str, Any]:
    return read_toml(_file()) if _file().is_file() else {}
