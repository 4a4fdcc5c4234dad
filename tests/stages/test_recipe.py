"""Recipes: complete settings of all stages from a file that holds only what differs."""

from __future__ import annotations

import copy
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fakes import tiny_model
from tiers import each_row

from rove.core.config import convert
from rove.core.errors import ConfigError, RunError
from rove.runs.run import Run
from rove.runs.train_folder import ResultRow
from rove.stages.completion import check_stages
from rove.stages.identity import identity_of
from rove.stages.pipeline import results_table
from rove.stages.recipe import Recipe, RecipeFile, read_recipe
from rove.stages.rl import BOOKKEEPING

VALUES: dict[str, Any] = {
    "model": {"size": "small"},
    "data": {"model": "scripted:teacher", "num_examples": 8},
    "sft": {"epochs": 2},
    "rl": [{"name": "RL", "steps": 3, "batch_size": 16}],
    "evaluation": {"num_examples": 4, "env_args": {"seed": 9}},
    "conditions": [{"name": "greedy", "temperature": 0.0, "env_args": {"num_examples": 4}}],
    "columns": [{"title": "reward", "condition": "greedy", "values": ["reward"]}],
}


def complete(folder: Path, device: str = "auto", model: str | None = None, **changes: Any) -> Recipe:
    return convert(RecipeFile, VALUES | changes).complete("tictactoe", folder, seed=5, model=model, device=device)


def test_a_recipe_fills_in_environment_folders_models_and_seeds(tmp_path: Path) -> None:
    recipe = complete(tmp_path)
    assert recipe.new_model is not None and recipe.data is not None and recipe.sft is not None
    assert (recipe.new_model.size, recipe.new_model.seed, recipe.new_model.output) == ("small", 5, recipe.model)
    assert (recipe.data.run_dir, recipe.data.seed) == (str(tmp_path / "data"), 5)
    assert (recipe.sft.model, recipe.sft.data, recipe.sft.epochs) == (recipe.model, str(tmp_path / "data"), 2)
    [stage] = recipe.rl
    assert (stage.name, stage.folder, stage.config.steps, stage.config.seed) == ("RL", "rl1", 3, 5)
    [condition] = recipe.conditions
    assert condition.own_temperature and condition.config.env_args == {"seed": 9, "num_examples": 4}


def test_a_given_model_replaces_the_new_one(tmp_path: Path) -> None:
    recipe = complete(tmp_path, model="models/mine")
    assert recipe.new_model is None and recipe.model == "models/mine"


def test_a_device_is_that_of_every_model_that_runs_here(tmp_path: Path) -> None:
    recipe = complete(tmp_path, device="cpu", sft={"device": "cuda"})
    assert recipe.sft is not None and recipe.data is not None
    assert (recipe.sft.device, recipe.rl[0].config.device, recipe.data.device) == ("cpu", "cpu", "auto")
    config = recipe.conditions[0].config
    assert recipe.evaluation_of(config, str(tmp_path), tmp_path).device == "cpu"
    assert recipe.evaluation_of(config, "scripted:teacher", tmp_path).device == "auto"


def test_the_settings_of_the_template_are_those_of_the_initial_model(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"chat_template": "chatml", "template_args": {"enable_thinking": False}}
    values = {**VALUES, "model": {"name": "models/base", **settings}}
    recipe = convert(RecipeFile, values).complete("tictactoe", tmp_path)
    config = recipe.conditions[0].config
    assert recipe.sft is not None
    initial = recipe.evaluation_of(config, "models/base", tmp_path)
    for stage in (recipe.sft, recipe.rl[0].config, initial):
        assert (stage.chat_template, stage.template_args) == ("chatml", {"enable_thinking": False})
    # A trained model keeps the settings in its folder; a scripted policy has none.
    for model in ("runs/sft/final", "scripted:teacher"):
        assert recipe.evaluation_of(config, model, tmp_path).chat_template is None
    with_other_model = convert(RecipeFile, values).complete("tictactoe", tmp_path, model="models/mine")
    assert with_other_model.rl[0].config.chat_template is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sft": {"epoch": 2}}, "unknown setting 'epoch'"),
        ({"rl": [{"name": "RL", "batch_size": 12}]}, "batch_size is 12; expected a multiple"),
        ({"columns": [{"title": "reward"}]}, "values"),
        ({"conditions": [{"name": "greedy", "temp": 0.0}]}, "unknown setting 'temp'"),
    ],
)
def test_wrong_settings_are_reported_before_any_stage(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        complete(tmp_path, **changes)


def test_the_table_has_a_row_per_model_and_the_published_results(tmp_path: Path) -> None:
    recipe = complete(tmp_path, baseline=[{"name": "published", "cells": ["90"]}])
    summary = {"reward": {"mean": 0.5, "low": 0.25, "high": 0.75}, "functions": {}}
    table = results_table(recipe, [ResultRow("base", "models/x", {"greedy": summary})])
    assert table.title == "12 rollouts per row; in %; greedy; tokens per rollout, truncated rollouts: greedy"
    assert [str(cell) for cell in table.columns[0].cells] == ["base", "published baseline", "published"]
    assert next(str(cell) for cell in table.columns[1].cells) == "50.0"


def test_the_table_shows_lengths_and_truncated_rollouts(tmp_path: Path) -> None:
    recipe = complete(tmp_path)
    summary = {
        "reward": {"mean": 0.5},
        "functions": {},
        "truncation_share": 0.324,
        "tokens_per_rollout": {"completion": 24.6},
    }
    rows = [ResultRow(model, model, {"greedy": summary}) for model in ("models/x", "scripted:teacher")]
    table = results_table(recipe, rows)
    assert str(table.columns[-1].header) == "tokens"
    # A policy has no tokenizer.
    assert [str(cell) for cell in table.columns[-1].cells] == ["24.6\n32.4%", "–\n32.4%"]


def test_a_smoke_test_shrinks_a_recipe_without_sizes_of_its_own(tmp_path: Path) -> None:
    measured = [{"env": "tictactoe", "name": "sampled", "num_examples": 200, "every": 25}]
    values = {
        **VALUES,
        "sft": {**VALUES["sft"], "epochs": 100, "evaluation": measured},
        "rl": [{"name": "RL", "steps": 300, "batch_size": 1024}],
    }
    recipe = read_recipe(tmp_path / "recipe.toml", copy.deepcopy(values), ["smoke"])
    assert recipe.data["num_examples"] == 60 and recipe.sft["epochs"] == 1
    assert recipe.sft["evaluation"][0] == {**measured[0], "num_examples": 8, "every": 2}
    assert (recipe.rl[0]["steps"], recipe.rl[0]["name"]) == (2, "RL")
    with pytest.raises(ConfigError, match="--lora needs a \\[lora\\] table"):
        read_recipe(tmp_path / "recipe.toml", copy.deepcopy(values), ["lora"])


@each_row("changes", [{"rl": 3}, {"rl": [3]}, {"sft": 3}, {"sft": {"evaluation": 3}}, {"rl": [{"evaluation": [3]}]}])
def test_a_smoke_test_of_a_wrong_recipe_raises_no_other_error(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The sizes are chosen before the recipe is checked."""
    with suppress(ConfigError):
        read_recipe(tmp_path / "recipe.toml", {**copy.deepcopy(VALUES), **changes}, ["smoke"])


def test_a_smoke_test_of_an_empty_recipe_names_the_missing_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing setting"):
        read_recipe(tmp_path / "recipe.toml", {}, ["smoke"])


def test_a_stage_with_a_template_continues_until_a_setting_changes(tmp_path: Path) -> None:
    tiny_model().save(tmp_path / "base")
    values = {**VALUES, "model": {"name": str(tmp_path / "base"), "chat_template": "chatml"}}
    recipe = convert(RecipeFile, values).complete("tictactoe", tmp_path)
    [stage] = recipe.rl
    with Run(tmp_path / stage.folder) as run:
        run.start("rl", {}, identity_of(stage.config, BOOKKEEPING, env="tictactoe#1"))
        run.finish({"steps": 1})
    check_stages(recipe, {})
    values["rl"] = [{**VALUES["rl"][0], "temperature": 0.5}]
    changed = convert(RecipeFile, values).complete("tictactoe", tmp_path)
    with pytest.raises(RunError, match="rl1 holds a different run; differences:\n  temperature"):
        check_stages(changed, {})
