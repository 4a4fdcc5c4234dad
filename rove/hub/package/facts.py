"""Measure what only running a package shows: load it in a separate process and run its scripted policies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from rove.core.errors import PackageError, RemoteError, WorkerError
from rove.remote.environment import NOT_THEIRS, rove_alone
from rove.workers import Workers

WORKER = Path(__file__).with_name("facts_worker.py")
TIMEOUT_S = 300.0
"""Time limit for loading an environment and running its policies."""
EXAMPLES = 5
"""Number of examples per policy."""
SEED = 0


class Score(msgspec.Struct, kw_only=True, frozen=True):
    """Results of one scripted policy."""

    rewards: list[float]
    """Rewards of the scored rollouts."""
    failed: int = 0
    error: str = ""
    """Error of the last failed rollout."""


class Facts(msgspec.Struct, kw_only=True, frozen=True):
    """What running an environment showed."""

    metrics: list[str]
    """Names of the rubric's reward functions and metrics."""
    tools: list[str]
    policies: dict[str, Score]
    network: bool
    """Whether the environment connected to another machine."""
    sandbox: bool


def measure(
    folder: Path, module: str, python: str | None = None, examples: int = EXAMPLES, seconds: float = TIMEOUT_S
) -> Facts:
    """Load the environment of a module and run its scripted policies.

    Args:
        folder: Folder that contains the module, as installed.
        module: Name of the module.
        python: Interpreter with the package's dependencies (default: this one).
        examples: Examples per policy, with seed `SEED`.
        seconds: Time limit for loading and all rollouts.

    Raises:
        PackageError: The environment cannot be loaded, or takes too long.
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
        message = error.args[0] if error.type == "ConfigError" else str(error)
        raise PackageError(
            f"{message}; install its dependencies into the interpreter given by --python, or build without rollouts (--no-play)"
        ) from error
    except WorkerError as error:
        raise PackageError(f"{error}; fix the environment, or build without rollouts (--no-play)") from error
    finally:
        workers.close()
