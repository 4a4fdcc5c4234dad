"""Facts about a package that only running it shows: load it in a separate process and run its scripted policies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from rove.core.errors import PackageError, RemoteError, WorkerError
from rove.remote.environment import NOT_THEIRS, rove_alone
from rove.workers import Workers

WORKER = Path(__file__).with_name("facts_worker.py")
SECONDS = 300.0
"""For loading an environment and playing in it."""
EXAMPLES = 5
"""How many examples every player plays."""
SEED = 0


class Score(msgspec.Struct, kw_only=True, frozen=True):
    """How a player did."""

    rewards: list[float]
    """Of the rollouts that were scored."""
    failed: int = 0
    error: str = ""
    """Of the last one that failed."""


class Facts(msgspec.Struct, kw_only=True, frozen=True):
    """What was seen."""

    metrics: list[str]
    """Names of all that the rubric says of a rollout."""
    tools: list[str]
    policies: dict[str, Score]
    network: bool
    """Whether anything but this machine was asked for anything."""
    sandbox: bool


def play(
    folder: Path, module: str, python: str | None = None, examples: int = EXAMPLES, seconds: float = SECONDS
) -> Facts:
    """Load the environment of a module and let its players play.

    Args:
        folder: where the module lies, as it would be installed.
        python: interpreter of an environment that has what the package needs. Default: this one.
        examples: that every player plays, with seed `SEED`.
        seconds: for all of it.

    Raises:
        PackageError: it cannot be loaded, or takes too long.
    """
    ours = [path for path in sys.path if path] if python is None else [rove_alone().name]
    workers = Workers(
        WORKER,
        {"folder": str(folder), "module": module, "examples": examples, "seed": SEED},
        python=python,
        paths=[str(folder), *ours],
        env={name: value for name, value in os.environ.items() if python is None or name not in NOT_THEIRS},
        start_seconds=seconds,
        name=f"environment '{module}'",
    )
    try:
        workers.start()
        return msgspec.convert(workers.setup_result, Facts)
    except RemoteError as error:
        said = error.args[0] if error.type == "ConfigError" else str(error)
        raise PackageError(
            f"{said}; what it needs must be installed where it is played (--python), or build it without playing (--no-play)"
        ) from error
    except WorkerError as error:
        raise PackageError(f"{error}; repair it, or build it without playing (--no-play)") from error
    finally:
        workers.close()
