"""Where metrics go beside metrics.jsonl, when that is asked for: TensorBoard, Weights & Biases, Trackio."""

from __future__ import annotations

import importlib
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypedDict

from rove.core.errors import ConfigError, nearest
from rove.runs.run import Run
from rove.runs.schema import decoded
from rove.utils.files import read_regular

PROJECT = "rove"
FILE = "loggers.json"
"""Holds the id that tells this run from others of its name, so that a resumed run goes on where it was."""
MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "trackio": "trackio"}


class Logger(Protocol):
    """Takes the metrics of every step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take those of a step, counted from 1."""
        ...

    def close(self) -> None:
        """Write out what is not written yet."""
        ...


def load_module(name: str) -> Any:
    """The library of a logger.

    Raises:
        ConfigError: there is no such logger, or its library is not installed.
    """
    if name not in MODULES:
        raise ConfigError(f"no logger '{name}'; {nearest(name, MODULES)}. metrics.jsonl is always written")
    try:
        return importlib.import_module(MODULES[name])
    except ImportError as error:
        raise ConfigError(
            f"loggers has '{name}', which needs a package that is not installed ({error}): install rove's {name} extra "
            f"(pip install 'rove[{name}]')"
        ) from error


def check_loggers(names: Sequence[str]) -> None:
    """Refuse loggers that are not there.

    Raises:
        ConfigError: see `load_module`; or one is named twice.
    """
    for name in names:
        if list(names).count(name) > 1:
            raise ConfigError(f"loggers has '{name}' twice; expected each once")
        load_module(name)


class TensorBoardLogger:
    """Writes event files to `tensorboard/` in the run folder."""

    def __init__(self, run: Run, config: Mapping[str, Any], step: int):
        writer = load_module("tensorboard").SummaryWriter
        self._writer = writer(str(run.path / "tensorboard"), purge_step=step + 1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write out what is not written yet."""
        self._writer.close()


class HostedLogger:
    """Weights & Biases or Trackio: a run of the project "rove" (or $WANDB_PROJECT), with the settings as its config."""

    def __init__(self, name: str, arguments: Mapping[str, Any]):
        self._module = load_module(name)
        self._module.init(**arguments)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        self._module.log(dict(metrics), step=step)

    def close(self) -> None:
        """Write out what is not written yet."""
        self._module.finish()


def _wandb(run: Run, config: Mapping[str, Any], step: int) -> Logger:
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    arguments = {"project": project, "name": run.path.name, "id": _id(run), "dir": str(run.path)}
    return HostedLogger("wandb", {**arguments, "config": dict(config), "resume": "allow"})


def _trackio(run: Run, config: Mapping[str, Any], step: int) -> Logger:
    name = f"{run.path.name}-{_id(run)}"
    return HostedLogger("trackio", {"project": PROJECT, "name": name, "config": dict(config), "resume": "allow"})


OPENERS: dict[str, Callable[[Run, Mapping[str, Any], int], Logger]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": _wandb,
    "trackio": _trackio,
}


def open_loggers(names: Sequence[str], run: Run, config: Mapping[str, Any], step: int) -> list[Logger]:
    """Loggers for a run.

    Args:
        names: of `OPENERS`.
        run: its folder.
        config: its settings, for people to read.
        step: the last one that counts; later ones may have been logged by a process that was stopped.

    Raises:
        ConfigError: see `load_module`.
    """
    check_loggers(names)
    return [OPENERS[name](run, config, step) for name in names]


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row of metrics, but for the step and what is not finite."""
    return {
        name: float(value)
        for name, value in row.items()
        if name != "step" and isinstance(value, (int, float)) and math.isfinite(value)
    }


def _id(run: Run) -> str:
    file = run.path / FILE
    if not file.exists():
        run.write_json(FILE, {"id": uuid.uuid4().hex[:8]})
    return decoded(file, read_regular(file), _Kept)["id"]


class _Kept(TypedDict):
    id: str
