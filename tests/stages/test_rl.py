"""RL as a function: names or environments, and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rove
from rove.core.errors import ConfigError
from rove.envs.loading import environment_version
from rove.stages import rl as rl_stage
from rove.stages.identity import noting_interruption


@pytest.fixture
def identities(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """The identities of the runs that would start; none does."""
    started: list[dict[str, Any]] = []

    def begin(run: Any, kind: str, config: Any, identity: dict[str, Any], *args: Any) -> None:
        started.append(identity)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rl_stage, "begin", begin)
    return started


def test_a_loaded_environment_is_the_same_run_as_its_name(identities: list[dict[str, Any]]) -> None:
    by_name = rove.rl("models/x", "tictactoe", env_args={"seed": 3}, steps=7)
    loaded = rove.rl("models/x", rove.load_environment("tictactoe", seed=3), steps=7)
    assert identities[0] == identities[1]
    assert identities[0]["env"] == environment_version("tictactoe")
    assert identities[0]["steps"] == 7
    assert by_name.run.path == loaded.run.path


def test_a_rule_for_equal_measurements_is_another_run(identities: list[dict[str, Any]]) -> None:
    measured = {"keep_best": "eval/tictactoe/reward/mean", "evaluation": [{"env": "tictactoe"}]}
    for settings in ({}, {"equal_best": "last"}, {"equal_best": "shortest"}):
        rove.rl("models/x", "tictactoe", **measured, **settings)
    default, last, shortest = identities
    assert default == last
    assert shortest == {**last, "equal_best": "shortest"}
    with pytest.raises(ConfigError, match="equal_best is 'first'"):
        rove.rl("models/x", "tictactoe", **measured, equal_best="first")
    with pytest.raises(ConfigError, match="but keep_best is not set"):
        rove.rl("models/x", "tictactoe", equal_best="shortest")


def test_an_environment_of_a_notebook_is_identified_by_its_rubric_and_arguments(
    identities: list[dict[str, Any]],
) -> None:
    def right(completion: Any) -> float:
        return 1.0

    env = rove.SingleTurnEnv(dataset=[{"question": "1 + 1?", "answer": "2"}], rubric=rove.Rubric([right]))
    rove.rl("models/x", env)
    assert identities[0]["env"]["env"].startswith("SingleTurnEnv#")
    assert identities[0]["env"]["rubric"]


def test_an_interruption_before_the_first_checkpoint_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = rove.Run(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt), noting_interruption(run, rove.ConsoleReporter(), "checkpoint_every", 10):
        raise KeyboardInterrupt
    note = "interrupted before the first checkpoint (checkpoint_every is 10 steps): nothing was saved"
    assert note in capsys.readouterr().out
