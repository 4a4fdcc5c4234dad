"""Make names of run folders, and parts of command lines for hints."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rove.core.digest import fingerprint
from rove.core.errors import as_json
from rove.core.plain import JsonMapping

if TYPE_CHECKING:
    from rove.stages.evaluation import EvalConfig
    from rove.train.config import RLConfig

RUNS = Path("runs")
"""Folder that contains the run folders for which `run_dir` is not set."""


def run_folder(run_dir: str | Path | None, *parts: str, identity: JsonMapping) -> Path:
    """Return the run folder: `run_dir`, or a folder in runs/ whose name depends only on the parts and the identity."""
    if run_dir is not None:
        return Path(run_dir)
    name = "--".join(file_name(part) for part in parts)
    return RUNS / f"{name}--{fingerprint(identity)}"


def file_name(part: str) -> str:
    """Return the last two parts of a model or environment name, with unsafe characters replaced.

    The name does not begin with a dot: `ls` and `rove view` do not show hidden folders.
    """
    parts = [name for name in part.split("/") if name not in ("", ".", "..")]
    tail = "-".join(parts[-2:]) or Path(part).resolve().name  # the name of ".", the current folder
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in tail).lstrip(".") or "unnamed"


def short(model: str) -> str:
    """Return the last two parts of a model's path, for progress lines."""
    return "/".join(model.rstrip("/").split("/")[-2:])


def environment_args(config: EvalConfig | RLConfig) -> str:
    """Return the words of a command line that name the environment of these settings, with its arguments."""
    words = named_environment(config.env, config.env_dir, config.env_args)
    if config.isolation.python is not None:
        return f"{words} --isolated-python {shlex.quote(config.isolation.python)}"
    return f"{words} --isolated" if config.isolation.enabled else words


def named_environment(env: str, env_dir: str | None, env_args: JsonMapping) -> str:
    """Return the words of a command line that name an environment with its arguments."""
    words = [env]
    if env_dir:
        words += ["--env-dir", env_dir]
    if env_args:
        words += ["-a", as_json(env_args)]
    return shlex.join(words)
