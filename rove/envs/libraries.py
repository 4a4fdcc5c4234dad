"""Names of environments of other libraries: "LIBRARY:NAME", such as "gym:FrozenLake-v1" or "openenv:http://localhost:8000"."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rove.core.digest import digest_files
from rove.core.errors import ConfigError, nearest
from rove.envs.environment import Environment
from rove.envs.question_files import is_question_file

DATA_ARGUMENTS = ("data", "eval_data")
"""Arguments that name files of rows; the version of an environment includes a digest of the files."""


class Library(NamedTuple):
    """How the environments of a library are loaded."""

    module: str
    """Module of the class. It is imported only when an environment of the library is loaded."""
    environment: str
    """Name of the class. Its first argument is the NAME, and its other arguments are those of `load_environment`."""
    distribution: str
    """Installed package whose version is part of the version of an environment; "" if there is none."""
    kind: str
    """What NAME is, for messages."""

    def load_class(self) -> Callable[..., Environment]:
        """Import the class."""
        return getattr(importlib.import_module(self.module), self.environment)

    @property
    def file(self) -> Path:
        """File of the class."""
        spec = importlib.util.find_spec(self.module)
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin)


_FOLDER = "rove.integrations.environments"
LIBRARIES = {
    "gym": Library(f"{_FOLDER}.gym", "GymEnv", "gymnasium", "an id of Gymnasium: gym:FrozenLake-v1"),
    "openenv": Library(f"{_FOLDER}.open_env", "OpenEnvEnv", "", "the URL of a server: openenv:http://localhost:8000"),
    "reasoning-gym": Library(
        f"{_FOLDER}.reasoning", "ReasoningGymEnv", "reasoning-gym", "a task family: reasoning-gym:leg_counting"
    ),
    "skyrl": Library(f"{_FOLDER}.skyrl", "SkyRLGymEnv", "skyrl-gym", "an id of skyrl-gym: skyrl:gsm8k"),
    "textarena": Library(f"{_FOLDER}.text_arena", "TextArenaEnv", "textarena", "a game: textarena:TicTacToe-v0"),
    "trl": Library(
        f"{_FOLDER}.trl_rewards", "TRLRewardsEnv", "", "reward functions written for TRL: trl:package.module:function"
    ),
    "verifiers": Library(
        f"{_FOLDER}.taskset",
        "TasksetEnv",
        "verifiers",
        "the module of a taskset of verifiers v1: verifiers:reversal_v1",
    ),
}
"""Library, as the part of a name before the first colon."""


def find_library(env_id: str) -> tuple[Library, str] | None:
    """Return the library of a name, and the name within the library; None for other names of environments.

    Raises:
        ConfigError: The name has a colon, but rove does not know the library, or the name within the library is empty.
    """
    prefix, colon, name = env_id.partition(":")
    if not colon or (prefix not in LIBRARIES and _is_file(env_id, prefix)):
        return None
    if prefix not in LIBRARIES:
        raise ConfigError(
            f"'{env_id}' names the library '{prefix}', which rove does not know; {nearest(prefix, LIBRARIES)}. "
            "Reward functions written for TRL are trl:package.module:function"
        )
    if not name:
        raise ConfigError(f"'{env_id}' ends after the colon; expected {LIBRARIES[prefix].kind}")
    return LIBRARIES[prefix], name


def _is_file(env_id: str, prefix: str) -> bool:
    """Return whether a name with a colon is a path: a file of questions, or a path with the letter of a drive."""
    return is_question_file(env_id) or len(prefix) == 1 or os.path.exists(env_id)


def library_version(library: Library, env_args: Mapping[str, object]) -> str:
    """Return version and digest of the rows of a library's environment, so that scores of different versions are not mixed."""
    parts: list[str] = []
    if library.distribution:
        # A taskset may be in the virtual environment of a worker process, without a copy here.
        with suppress(importlib.metadata.PackageNotFoundError):
            parts.append(importlib.metadata.version(library.distribution))
    paths = [env_args.get(name) for name in DATA_ARGUMENTS]
    files = [Path(path) for path in paths if isinstance(path, str)]
    if files:
        parts.append(digest_files(files))
    return "#".join(parts) or "unversioned"
