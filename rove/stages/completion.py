"""Record that all stages of a recipe are complete, so that repeating the command neither trains nor evaluates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rove.core.config import convert
from rove.core.digest import differences, digest_model, plain
from rove.core.errors import ConfigError, RunError
from rove.core.plain import UNREADABLE, JsonObject
from rove.envs.loading import environment_version
from rove.models.pretrained import model_path
from rove.remote.loading import without_isolation
from rove.runs.run import Run
from rove.runs.train_folder import COMPLETE, RESULTS, Completion
from rove.stages.evaluation import EvalConfig
from rove.stages.recipe import Recipe
from rove.utils.files import atomic_write

if TYPE_CHECKING:
    from rove.train.config import TrainingConfig

NOT_COMPARED = {"model", "chat_template", "env", "env_args", "data"}
"""Settings that are not compared here: when a stage starts, it compares the content to which they refer."""


def identity_of_recipe(recipe: Recipe) -> JsonObject:
    """Return all settings of a recipe, and the versions of its environment and of its pretrained model."""
    values: JsonObject = msgspec.to_builtins(recipe, enc_hook=str)
    version = environment_version(recipe.env, recipe.env_dir, recipe.env_args)
    model = None if recipe.new_model is not None else digest_model(model_path(recipe.model))
    return msgspec.json.decode(msgspec.json.encode({"recipe": values, "version": version, "model": model}))


def write_completion(recipe: Recipe, notes: list[str], cost: str) -> None:
    """Record that all stages of a recipe are complete."""
    content = msgspec.json.encode(Completion(identity_of_recipe(recipe), notes, cost))
    atomic_write(recipe.folder / COMPLETE, content)


def read_completion(recipe: Recipe) -> Completion | None:
    """Return the record of a complete run; None if the recipe, the environment or the model has changed, or a run is missing."""
    file = recipe.folder / COMPLETE
    if not file.exists() or not (recipe.folder / RESULTS).exists():
        return None
    try:
        completion = msgspec.json.decode(file.read_bytes(), type=Completion)
    except UNREADABLE:  # damaged, or of another version of rove: the stages themselves know what is complete
        return None
    folders = [recipe.folder / stage.folder for stage in recipe.rl]
    if recipe.sft is not None:
        folders.append(recipe.folder / "sft")
    has_all_models = all((folder / "final").is_dir() and Run(folder).summary() is not None for folder in folders)
    return completion if has_all_models and completion.identity == identity_of_recipe(recipe) else None


def check_stages(recipe: Recipe, evaluations: Mapping[Path, EvalConfig]) -> None:
    """Check that the runs in a recipe's folder have the recipe's settings, before the first run continues.

    Each stage makes this check, too, but the last stage starts only after the other stages have been repeated.

    Args:
        recipe: The recipe.
        evaluations: The settings of the evaluations by their run folders.

    Raises:
        RunError: A setting has changed since a stage was run.
    """
    from rove.stages import rl, sft
    from rove.stages.identity import BOOKKEEPING

    stages: list[tuple[Path, TrainingConfig, set[str]]] = []
    if recipe.sft is not None:
        stages.append((recipe.folder / "sft", recipe.sft, sft.BOOKKEEPING))
    for stage in recipe.rl:
        stages.append((recipe.folder / stage.folder, stage.config, rl.BOOKKEEPING))
    for folder, config, bookkeeping in stages:
        recorded: JsonObject = _recorded(folder).get("identity", {})
        current = without_isolation(msgspec.to_builtins(config))
        # A setting that only this version of rove has stands for its default.
        compared = (current.keys() & recorded.keys()) - NOT_COMPARED - BOOKKEEPING - bookkeeping
        _refuse_changes(folder, recorded, current, compared)
    for folder, config in evaluations.items():
        values = _recorded(folder).get("config")
        if values is None:
            continue
        try:
            recorded_config = convert(EvalConfig, values)
        except ConfigError:  # of another version of rove
            continue
        names = {"sampling_args", "limits", "seed", "train"}
        _refuse_changes(folder, recorded_config.options, config.options, names)


def _recorded(folder: Path) -> JsonObject:
    """Return the settings of a run with results; {} if there is no such run."""
    run = Run(folder)
    has_results = any((folder / name).exists() for name in ("rollouts.jsonl", "metrics.jsonl", "summary.json"))
    return run.config() if has_results and (folder / "config.toml").exists() else {}


def _refuse_changes(folder: Path, recorded: Mapping[str, Any], current: Mapping[str, Any], names: set[str]) -> None:
    """Raise a RunError if one of these settings differs."""
    recorded_values = {name: msgspec.to_builtins(recorded[name]) for name in names if name in recorded}
    current_values = {name: msgspec.to_builtins(current[name]) for name in names if name in current}
    changes = differences(plain(recorded_values), plain(current_values))
    if changes:
        lines = "\n  ".join(changes)
        raise RunError(
            f"{folder} holds a different run; differences:\n  {lines}\n"
            f"Use another folder for the changed recipe, or delete {folder} and the stages after it"
        )
