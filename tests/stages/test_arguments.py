"""Settings from a config object and keyword arguments, and results as tables."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import rove
from rove.core.errors import ConfigError
from rove.runs.run import Run
from rove.stages.arguments import settings_from
from rove.stages.models import ModelConfig
from rove.stages.results import TrainingResult, ending_lines
from rove.train.config import LoRAConfig, RLConfig


def test_arguments_override_the_config_and_tables_are_merged() -> None:
    config = RLConfig(env="tictactoe", model="a", lora=LoRAConfig(rank=4, alpha=8.0))
    used = settings_from(
        RLConfig, config, {"model": "b", "lora": {"rank": 8}, "steps": None, "run_dir": Path("runs/x")}
    )
    assert (used.env, used.model, used.steps, used.run_dir) == ("tictactoe", "b", config.steps, "runs/x")
    assert (used.lora.rank, used.lora.alpha) == (8, 8.0)
    assert settings_from(RLConfig, config, {"lora": LoRAConfig(rank=2)}).lora.rank == 2


def test_wrong_arguments_are_reported_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'sizes'; .*size"):
        settings_from(ModelConfig, None, {"env": "tictactoe", "sizes": "tiny"})
    with pytest.raises(ConfigError, match="missing settings: model, data|missing settings: data, model"):
        rove.sft()


def write_result(folder: Path) -> TrainingResult:
    with Run(folder) as run:
        run.start("rl", {"env": "tictactoe"}, {})
        for step in (1, 2):
            run.append_metrics({"step": step, "reward/mean": 0.25 * step})
        best = {"metric": "reward/mean", "value": 0.5, "step": 2}
        run.finish({"steps": 2, "best": best, "stopped": "no new best"})
    return TrainingResult(folder / "final", run)


def test_a_result_has_metrics_best_step_table_and_figure(tmp_path: Path) -> None:
    result = write_result(tmp_path / "run")
    assert (result.kind, len(result.metrics), result.stopped) == ("rl", 2, "no new best")
    assert result.best is not None and (result.best.value, result.best.step) == (0.5, 2)
    assert result.table.title == "RL in tictactoe" and result.table.row_count == 1
    assert result.plot().axes[0].get_title() == "reward"
    best_line, stop_line = ending_lines(result.run)
    assert best_line.startswith("best reward/mean: 0.5000 at step 2, kept in ")
    assert stop_line == "stopped after step 2: no new best"


def test_a_frame_needs_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = write_result(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        result.to_pandas()


def test_objects_in_place_of_names_and_swapped_arguments_are_explained() -> None:
    env = rove.load_environment("tictactoe")
    with pytest.raises(ConfigError, match="env is 'scripted:teacher', which names a model"):
        rove.evaluate_model("tictactoe", "scripted:teacher")
    with pytest.raises(ConfigError, match=r"model is a \w+; expected its name.*rove.evaluate\(env, client\)"):
        rove.evaluate_model(env, "tictactoe")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="loaded in other processes"):
        rove.train_model(env)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="loaded in other processes"):
        rove.audit_environment(env)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="rove.evaluate_model takes names"):
        asyncio.run(rove.evaluate("tictactoe", rove.make_client("scripted:teacher", env)))  # pyright: ignore[reportArgumentType]
