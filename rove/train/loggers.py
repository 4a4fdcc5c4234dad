"""Metric loggers other than metrics.jsonl: TensorBoard, Weights & Biases, Trackio."""

from __future__ import annotations

import importlib
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypedDict

from rove.core.errors import ConfigError, nearest, sentence
from rove.core.masking import without_secrets
from rove.core.plain import JsonMapping
from rove.runs.run import Run
from rove.runs.schema import decoded
from rove.utils.files import read_regular

PROJECT = "rove"
FILE = "loggers.json"
"""File with the run's id at the logging service, so that a resumed run continues the same log."""
MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "trackio": "trackio"}


class Logger(Protocol):
    """Logs the metrics of every step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step, counted from 1. With `lr_backoff`, step 0 has the evaluation of the initial weights."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...


def load_module(name: str) -> Any:
    """Return the library of a logger."""
    if name not in MODULES:
        raise ConfigError(f"no logger '{name}'; {sentence(nearest(name, MODULES))} metrics.jsonl is always written")
    try:
        return importlib.import_module(MODULES[name])
    except ImportError as error:
        raise ConfigError(
            f"loggers has '{name}', which needs a package that is not installed ({error}): install rove's {name} extra "
            f"(pip install 'rove[{name}]')"
        ) from error


def check_loggers(names: Sequence[str]) -> None:
    """Check the names of loggers."""
    for name in names:
        if list(names).count(name) > 1:
            raise ConfigError(f"loggers has '{name}' twice; expected each once")
        load_module(name)


class TensorBoardLogger:
    """Write event files to `tensorboard/` in the run folder."""

    def __init__(self, run: Run, config: JsonMapping, step: int):
        writer = load_module("tensorboard").SummaryWriter
        # A stopped process may have logged steps that a resumed run takes again: `purge_step` hides them.
        self._writer = writer(str(run.path / "tensorboard"), purge_step=step + 1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class HostedLogger:
    """Log to Weights & Biases or Trackio, in the project "rove" (or $WANDB_PROJECT), with the settings as config."""

    def __init__(self, name: str, arguments: JsonMapping):
        self._module = load_module(name)
        self._module.init(**arguments)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        self._module.log(dict(metrics), step=step)

    def close(self) -> None:
        """Flush and close."""
        self._module.finish()


def _wandb(run: Run, config: JsonMapping, step: int) -> Logger:
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    arguments = {"project": project, "name": run.path.name, "id": _id(run), "dir": str(run.path)}
    return HostedLogger("wandb", {**arguments, "config": without_secrets(dict(config)), "resume": "allow"})


def _trackio(run: Run, config: JsonMapping, step: int) -> Logger:
    # Trackio identifies a run by its name, so the name must be as unique as the id.
    name = f"{run.path.name}-{_id(run)}"
    return HostedLogger(
        "trackio", {"project": PROJECT, "name": name, "config": without_secrets(dict(config)), "resume": "allow"}
    )


OPENERS: dict[str, Callable[[Run, JsonMapping, int], Logger]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": _wandb,
    "trackio": _trackio,
}


def open_loggers(names: Sequence[str], run: Run, config: JsonMapping, step: int) -> list[Logger]:
    """Return the loggers of a run.

    Args:
        step: Last step of the run so far; a stopped process may have logged later steps, which are discarded.
    """
    check_loggers(names)
    return [OPENERS[name](run, config, step) for name in names]


def scalars(row: JsonMapping) -> dict[str, float]:
    """Return the finite numbers of a row of metrics, without the step."""
    numbers: dict[str, float] = {}
    for name, value in row.items():
        if name != "step" and isinstance(value, (int, float)) and math.isfinite(value):
            numbers[name] = float(value)
    return numbers


def _id(run: Run) -> str:
    file = run.path / FILE
    if not file.exists():
        run.write_json(FILE, {"id": uuid.uuid4().hex[:8]})
    return decoded(file, read_regular(file), _LoggerId)["id"]


class _LoggerId(TypedDict):
    id: str
