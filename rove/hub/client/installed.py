"""Installed environments, each in its own virtual environment and identified by OWNER/NAME."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rove.check.package_files import Package, packages_in
from rove.core.errors import ConfigError, HubError
from rove.core.plain import UNREADABLE
from rove.envs import loading
from rove.envs.environment import Environment
from rove.hub.package.manifest import V0
from rove.hub.package.names import Reference, parse_reference
from rove.utils.files import data_folder, file_lock
from rove.utils.systems import venv_python

logger = logging.getLogger(__name__)

SCHEMA = 1
RECORD = "installed.json"
"""File that names the folder of the current installation. It is written last, so that an interrupted installation has
no effect."""
LOCAL = "local"
"""Owner of environments installed from a folder, a wheel or git."""
INHERITED_VARIABLES = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "SHELL", "TERM", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_OFFLINE", "ROVE_COMPAT", "DOCKER_HOST"),
)
"""Environment variables passed to an installed environment, in addition to those in its manifest."""
COMPAT_HOOK = "rove.compat:install_replacement"
"""Function that a v0 package's worker calls; imports of `verifiers` then load rove's implementation."""
PASS_VARIABLE = "ROVE_PASS"
"""Environment variable that lists additional variables to pass, separated by commas."""


class Installed(msgspec.Struct, kw_only=True, frozen=True):
    """An installed environment."""

    schema: int = SCHEMA
    owner: str
    name: str
    version: str
    module: str
    folder: str
    """Folder next to the record, with `venv`, `manifest.json` and the wheel."""
    file: str
    """Path of the module's file inside `folder`."""
    origin: str
    """The hub, folder, wheel or git URL from which it was installed."""
    manifest: str
    """SHA-256 of the manifest."""
    wheel: str
    """SHA-256 of the wheel."""
    key: str | None = None
    """Public key that signed the manifest, or None."""
    secrets: list[str] = []
    """Environment variables that the manifest names; no other secrets are passed."""
    compatibility: str = ""
    installed: str
    """Time of installation (ISO 8601, UTC)."""

    @property
    def reference(self) -> Reference:
        """OWNER/NAME@VERSION."""
        return Reference(self.owner, self.name, self.version)

    @property
    def path(self) -> Path:
        """Folder of the installation."""
        return environment_folder(self.reference) / self.folder

    @property
    def python(self) -> Path:
        """Interpreter of its virtual environment."""
        return venv_python(self.path / "venv")


def environment_folder(reference: Reference) -> Path:
    """Return the folder of an environment, which need not exist."""
    return _root() / reference.owner / reference.name


def find(reference: Reference) -> Installed | None:
    """Return the installed environment; None if the environment or the given version is not installed."""
    file = environment_folder(reference) / RECORD
    try:
        installed = msgspec.json.decode(file.read_bytes(), type=Installed)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as error:
        raise HubError(f"{file} cannot be read ({error}); delete {file.parent} and install it again") from None
    return installed if reference.version in (None, installed.version) else None


def require_installed(reference: Reference) -> Installed:
    """Return the installed environment."""
    installed = find(reference)
    if installed is None:
        names = ", ".join(str(environment.reference) for environment in all_installed()) or "none"
        raise HubError(f"{reference} is not installed; installed: {names}")
    return installed


def all_installed() -> list[Installed]:
    """Return all installed environments by owner and name; damaged ones are skipped with a warning."""
    environments = []
    for file in sorted(_root().glob(f"*/*/{RECORD}")):
        try:
            environments.append(find(Reference(file.parent.parent.name, file.parent.name)))
        except HubError as error:
            logger.warning("%s", error)
    return [environment for environment in environments if environment is not None]


def uninstall(reference: Reference) -> Installed:
    """Uninstall an environment and delete its virtual environment."""
    with install_lock(reference):
        installed = require_installed(reference)
        (environment_folder(reference) / RECORD).unlink()
        shutil.rmtree(environment_folder(reference))
    return installed


def install_lock(reference: Reference) -> AbstractContextManager[None]:
    """Return a context that holds the lock of an environment while it is installed or uninstalled."""
    return file_lock(_root() / reference.owner / f".{reference.name}.lock")


def load(name: str, env_args: Mapping[str, object] | None = None, **options: Any) -> Environment:
    """Load an installed environment in a worker process that runs the interpreter of its virtual environment.

    The worker receives only `INHERITED_VARIABLES`, the variables in its manifest and those listed in `$ROVE_PASS`. An
    environment installed from a folder, a wheel or git receives all variables.
    """
    reference = parse_reference(name)
    installed = find(reference)
    if installed is None:
        raise ConfigError(f"{reference} is not installed; install it with `rove install {reference}`")
    from rove.remote import IsolatedEnv

    options = {"python": str(installed.python)} | {key: value for key, value in options.items() if value is not None}
    if installed.compatibility == V0:
        options["prepare"] = COMPAT_HOOK
    try:
        env = IsolatedEnv(installed.module, env_args, environ=_environ(installed), **options)
    except ConfigError as error:
        unset = [name for name in installed.secrets if not os.environ.get(name)]
        if not unset:
            raise
        raise ConfigError(
            f"{error}\nits manifest requires the environment variables {', '.join(unset)}, which are not set"
        ) from error
    env.env_id = f"{installed.owner}/{installed.name}"
    return env


def module_file(installed: Installed) -> Path:
    """Return the file of an environment's module."""
    file = installed.path / installed.file
    for path in (file, installed.python):
        if not path.exists():
            raise ConfigError(
                f"{installed.reference} is damaged (missing {path}); install it again: rove install {installed.reference}"
            )
    return file


def finder(
    env_id: str, absent: Callable[[Reference], Installed | None] | None = None
) -> loading.ExternalEnvironment | None:
    """Find an installed environment; a finder for `rove.envs.loading.finders`.

    Args:
        env_id: OWNER/NAME or OWNER/NAME@VERSION; for any other id, the result is None.
        absent: Function that is called for an environment that is not installed; it may install the environment.
    """
    try:
        reference = parse_reference(env_id)
    except ConfigError:  # not an environment on a hub
        return None
    installed = find(reference)
    if installed is None and absent is not None:
        installed = absent(reference)
    if installed is None:
        return None
    return loading.ExternalEnvironment(module_file(installed), partial(load, str(installed.reference)))


def _environ(installed: Installed) -> dict[str, str] | None:
    if installed.owner == LOCAL:
        return None
    passed_variables = [name.strip() for name in os.environ.get(PASS_VARIABLE, "").split(",")]
    names = (*INHERITED_VARIABLES, *installed.secrets, *passed_variables)
    return {name: os.environ[name] for name in names if name in os.environ}


def _root() -> Path:
    return data_folder() / "environments"


def packages_named(name: str, env_dir: str | None) -> list[Package]:
    """Return the packages that an argument names; an installed hub environment is represented by its wheel."""
    installed = find(parse_reference(name)) if "/" in name and not Path(name).exists() else None
    if installed is None:
        return packages_in(name, env_dir)
    [wheel] = installed.path.glob("*.whl")
    return [Package(name, "wheel", wheel)]
