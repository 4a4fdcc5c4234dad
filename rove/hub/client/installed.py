"""Environments that are installed: each in a virtual environment of its own, found by OWNER/NAME."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rove.core.errors import ConfigError, HubError
from rove.envs import loading
from rove.envs.environment import Environment
from rove.hub.package.manifest import V0
from rove.hub.package.names import Reference, parse_reference
from rove.hub.user_paths import data_folder

try:
    import fcntl
except ImportError:  # Windows: a second process that installs the same is not noticed there
    fcntl = None

logger = logging.getLogger(__name__)

SCHEMA = 1
RECORD = "installed.json"
"""Says which of the folders beside it is the environment; written last, so that an install that was killed was none."""
LOCAL = "local"
"""The owner of what was installed from a folder, a wheel or git."""
PASSED_ON = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "SHELL", "TERM", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_OFFLINE", "ROVE_COMPAT", "DOCKER_HOST"),
)
"""Environment variables that an installed environment sees, besides those that its manifest names."""
STANDS_IN = "rove.compat:install_replacement"
"""Called in the worker of a package of v0: rove answers for `verifiers`, whatever is installed."""
PASS_VAR = "ROVE_PASS"
"""Names of more of them, separated by commas."""


class Installed(msgspec.Struct, kw_only=True, frozen=True):
    """An environment that is installed."""

    schema: int = SCHEMA
    owner: str
    name: str
    version: str
    module: str
    folder: str
    """Beside the record: has `venv`, `manifest.json` and the wheel."""
    file: str
    """Of the module, inside `folder`."""
    origin: str
    """The hub, folder, wheel or git URL that it came from."""
    manifest: str
    """SHA-256 of its manifest."""
    wheel: str
    """SHA-256 of its wheel."""
    key: str | None = None
    """The key that signed the manifest, if one did."""
    secrets: list[str] = []
    """Environment variables that its manifest names: it sees them, and no other keys."""
    compatibility: str = ""
    installed: str
    """When: ISO, UTC."""

    @property
    def reference(self) -> Reference:
        """OWNER/NAME@VERSION."""
        return Reference(self.owner, self.name, self.version)

    @property
    def path(self) -> Path:
        """Where it lies."""
        return home(self.reference) / self.folder

    @property
    def python(self) -> Path:
        """The interpreter of its virtual environment."""
        return self.path / "venv" / "bin" / "python"


def home(reference: Reference) -> Path:
    """Where an environment lies, or would."""
    return _all() / reference.owner / reference.name


def find(reference: Reference) -> Installed | None:
    """The environment of that name, at that version if one is given; None where it is not installed.

    Raises:
        HubError: what is there cannot be read.
    """
    file = home(reference) / RECORD
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Installed)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise HubError(f"{file} cannot be read ({error}); delete {file.parent} and install it again") from None
    return found if reference.version in (None, found.version) else None


def all_installed() -> list[Installed]:
    """Every environment that is installed, by owner and name; a damaged one is left out, with a warning."""
    found = []
    for file in sorted(_all().glob(f"*/*/{RECORD}")):
        try:
            found.append(find(Reference(file.parent.parent.name, file.parent.name)))
        except HubError as error:
            logger.warning("%s", error)
    return [one for one in found if one is not None]


def uninstall(reference: Reference) -> Installed:
    """Take an environment away, with its virtual environment.

    Raises:
        HubError: it is not installed.
    """
    with being_changed(reference):
        found = find(reference)
        if found is None:
            known = ", ".join(str(one.reference) for one in all_installed()) or "none"
            raise HubError(f"{reference} is not installed; installed: {known}")
        (home(reference) / RECORD).unlink()
        shutil.rmtree(home(reference))
    return found


@contextmanager
def being_changed(reference: Reference) -> Iterator[None]:
    """One at a time: while this goes on nobody else installs or takes away the environment."""
    folder = _all() / reference.owner
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{reference.name}.lock").open("ab") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def load(name: str, env_args: Mapping[str, Any] | None = None, **options: Any) -> Environment:
    """An installed environment, in a worker process with the interpreter of its virtual environment.

    It sees few environment variables: `PASSED_ON`, those that its manifest names, and those named in
    `$ROVE_PASS`; one from a folder, a wheel or git sees all.

    Args:
        name: OWNER/NAME, or OWNER/NAME@VERSION.
        options: of `rove.IsolatedEnv`.

    Raises:
        ConfigError: it is not installed, or cannot be loaded.
    """
    reference = parse_reference(name)
    found = find(reference)
    if found is None:
        raise ConfigError(f"{reference} is not installed; install it with `rove install {reference}`")
    from rove.remote import IsolatedEnv

    options = {"python": str(found.python)} | {key: value for key, value in options.items() if value is not None}
    if found.compatibility == V0:
        options["prepare"] = STANDS_IN
    try:
        env = IsolatedEnv(found.module, env_args, environ=_environ(found), **options)
    except ConfigError as error:
        unset = [name for name in found.secrets if not os.environ.get(name)]
        if not unset:
            raise
        raise ConfigError(f"{error}\nits manifest names {', '.join(unset)}, which is not set") from error
    env.env_id = f"{found.owner}/{found.name}"
    return env


def module_file(found: Installed) -> Path:
    """The file of an environment's module.

    Raises:
        ConfigError: it has gone, or the Python that it was installed with has.
    """
    file = found.path / found.file
    if not file.is_file() or not found.python.exists():
        raise ConfigError(
            f"{found.reference} is damaged (no {file if not file.is_file() else found.python}); install it again: "
            f"rove install {found.reference}"
        )
    return file


def finder(env_id: str, absent: Callable[[Reference], Installed | None] | None = None) -> loading.Elsewhere | None:
    """One of `rove.envs.loading.finders`.

    Args:
        absent: asked for one that is not installed.
    """
    try:
        reference = parse_reference(env_id)
    except ConfigError:  # a name of another kind
        return None
    found = find(reference)
    if found is None and absent is not None:
        found = absent(reference)
    if found is None:
        return None
    name = str(found.reference)
    return loading.Elsewhere(module_file(found), lambda env_args, **options: load(name, env_args, **options))


def _environ(found: Installed) -> dict[str, str] | None:
    if found.owner == LOCAL:
        return None
    more = [name.strip() for name in os.environ.get(PASS_VAR, "").split(",")]
    return {name: os.environ[name] for name in (*PASSED_ON, *found.secrets, *more) if name in os.environ}


def _all() -> Path:
    return data_folder() / "environments"
