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
    """A fake of a logger's library, which is not installed in the test environment."""

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
    libraries = {name: Fake(module) for name, module in MODULES.items()}
    for name, module in MODULES.items():
        monkeypatch.setitem(sys.modules, module, libraries[name])
    return libraries


@pytest.mark.parametrize("name", MODULES)
def test_every_logger_receives_the_metrics_of_every_step(tmp_path: Path, fakes: dict[str, Fake], name: str):
    run = Run(tmp_path)
    [logger] = open_loggers([name], run, {"seed": 1}, 3)
    logger.log(4, {"reward/mean": 0.5})
    logger.close()
    opened, *later_calls = fakes[name].calls
    assert later_calls == [("log", (4, {"reward/mean": 0.5})), ("finish", None)]
    if name == "tensorboard":
        assert opened[1] == {"folder": str(tmp_path / "tensorboard"), "purge_step": 4}
    else:
        assert (opened[1]["project"], opened[1]["config"], opened[1]["resume"]) == ("rove", {"seed": 1}, "allow")


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_resumed_run_keeps_its_name_and_id(tmp_path: Path, fakes: dict[str, Fake], name: str):
    for folder in ("a", "a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        open_loggers([name], Run(tmp_path / folder), {}, 0)
    first, resumed, separate = ((call["name"], call.get("id")) for _, call in fakes[name].calls)
    assert first == resumed != separate


def test_wandb_project_sets_the_project(tmp_path: Path, fakes: dict[str, Fake], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    open_loggers(["wandb"], Run(tmp_path), {}, 0)
    assert fakes["wandb"].calls[0][1]["project"] == "mine"


@pytest.mark.parametrize("name", MODULES)
def test_a_missing_package_is_an_error_that_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    with pytest.raises(ConfigError, match=rf"loggers has '{name}'.*pip install 'rove\[{name}\]'"):
        check_loggers([name])


def test_unknown_and_duplicate_loggers_are_rejected(fakes: dict[str, Fake]):
    with pytest.raises(ConfigError, match="no logger 'tensorbord'; did you mean 'tensorboard'"):
        check_loggers(["tensorbord"])
    with pytest.raises(ConfigError, match="'wandb' twice"):
        check_loggers(["wandb", "wandb"])


def test_only_finite_numbers_are_logged():
    assert scalars({"step": 3, "a": 1, "b": float("nan"), "c": "x", "d": 0.5}) == {"a": 1.0, "d": 0.5}


def test_tensorboard_can_read_the_logged_metrics(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [logger] = open_loggers(["tensorboard"], Run(tmp_path), {}, 0)
    logger.log(1, {"reward/mean": 0.25})
    logger.log(2, {"reward/mean": 0.5})
    logger.close()
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    assert [(event.step, event.value) for event in accumulator.Scalars("reward/mean")] == [(1, 0.25), (2, 0.5)]
