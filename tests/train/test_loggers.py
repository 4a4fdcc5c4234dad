from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rove.core.errors import ConfigError
from rove.runs.run import Run
from rove.train.loggers import MODULES, check_loggers, open_loggers, scalars


class Fake(ModuleType):
    """Stands for the library of a logger, which is not installed where rove is tested."""

    def __init__(self, name: str):
        super().__init__(name)
        self.calls: list[tuple[str, Any]] = []

    def init(self, **arguments: Any) -> None:
        self.calls.append(("init", arguments))

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.calls.append(("log", (step, metrics)))

    def finish(self) -> None:
        self.calls.append(("finish", None))

    def SummaryWriter(self, folder: str, purge_step: int) -> Any:
        self.calls.append(("init", {"folder": folder, "purge_step": purge_step}))
        return SimpleNamespace(
            add_scalar=lambda name, value, step: self.calls.append(("log", (step, {name: value}))),
            close=self.finish,
        )


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Fake]:
    made = {name: Fake(module) for name, module in MODULES.items()}
    for name, module in MODULES.items():
        monkeypatch.setitem(sys.modules, module, made[name])
    return made


@pytest.mark.parametrize("name", MODULES)
def test_every_logger_gets_the_numbers_of_every_step(tmp_path: Path, fakes: dict[str, Fake], name: str):
    run = Run(tmp_path)
    [logger] = open_loggers([name], run, {"seed": 1}, 3)
    logger.log(4, {"reward/mean": 0.5})
    logger.close()
    opened, *rest = fakes[name].calls
    assert rest == [("log", (4, {"reward/mean": 0.5})), ("finish", None)]
    if name == "tensorboard":
        assert opened[1] == {"folder": str(tmp_path / "tensorboard"), "purge_step": 4}
    else:
        assert (opened[1]["project"], opened[1]["config"], opened[1]["resume"]) == ("rove", {"seed": 1}, "allow")


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_resumed_run_goes_on_under_the_same_name(tmp_path: Path, fakes: dict[str, Fake], name: str):
    for folder in ("a", "a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        open_loggers([name], Run(tmp_path / folder), {}, 0)
    first, again, other = ((call["name"], call.get("id")) for _, call in fakes[name].calls)
    assert first == again != other


def test_the_project_can_be_another(tmp_path: Path, fakes: dict[str, Fake], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    open_loggers(["wandb"], Run(tmp_path), {}, 0)
    assert fakes["wandb"].calls[0][1]["project"] == "mine"


@pytest.mark.parametrize("name", MODULES)
def test_what_is_not_installed_is_told_with_the_extra_to_install(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    with pytest.raises(ConfigError, match=rf"loggers has '{name}'.*pip install 'rove\[{name}\]'"):
        check_loggers([name])


def test_unknown_loggers_are_refused_with_the_nearest(fakes: dict[str, Fake]):
    with pytest.raises(ConfigError, match="no logger 'tensorbord'; did you mean 'tensorboard'"):
        check_loggers(["tensorbord"])
    with pytest.raises(ConfigError, match="'wandb' twice"):
        check_loggers(["wandb", "wandb"])


def test_only_finite_numbers_are_logged():
    assert scalars({"step": 3, "a": 1, "b": float("nan"), "c": "x", "d": 0.5}) == {"a": 1.0, "d": 0.5}


def test_tensorboard_can_read_what_is_written(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [logger] = open_loggers(["tensorboard"], Run(tmp_path), {}, 0)
    logger.log(1, {"reward/mean": 0.25})
    logger.log(2, {"reward/mean": 0.5})
    logger.close()
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(event.step, event.value) for event in read.Scalars("reward/mean")] == [(1, 0.25), (2, 0.5)]
